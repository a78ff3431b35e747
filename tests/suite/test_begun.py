"""Cells whose training was interrupted go on as what they were; what is trained can be kept."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Timer

import pytest
import torch

from refilled.errors import UserError
from refilled.models.weights import read_weights, write_tensors
from refilled.runs import run as runs_run
from refilled.suite import Bench, Ledger, OverSeeds, Places, cells_of, get_table, trainings
from refilled.suite.figures.figure import Studio


def tiny_cells(method="refilled"):
    """One, of a method with two stages by default."""
    table = get_table("cifar100-gkd")
    where = table.where({"overlap": (60,), "student": ("wrn-16-2",), "method": (method,)})
    return [cell.with_settings(epochs=12) for cell in cells_of(table, where, OverSeeds(1), tiny=True)]


def watched_turns(folder, cells, most=None):
    """Run cells; their ledger, and the number of turns. After ``most`` it is interrupted."""
    runner = Bench(
        Ledger(folder / "ledger.jsonl"), Places(None, folder), "cpu", [].append, checkpoint_seconds=0.0
    )
    make, turns = runner.trainings.run, []

    def watched(cell, before):
        for measured in make(cell, before):
            turns.append(cell)
            yield measured
            if len(turns) == most:
                raise KeyboardInterrupt

    runner.trainings.run = watched
    runner.run(cells)
    return runner.ledger, len(turns)


def test_an_interrupted_training_goes_on_and_ends_the_same(tmp_path):
    """Three quarters of the turns, with a checkpoint after each epoch; then again."""
    cells = tiny_cells()
    expected, turns = watched_turns(tmp_path / "whole", cells)
    began = tmp_path / "in parts"
    with pytest.raises(KeyboardInterrupt):
        watched_turns(began, cells, most=turns * 3 // 4)
    (checkpoint,) = began.glob("begun/*/checkpoint/last.safetensors")
    found, more = watched_turns(began, cells)
    assert more < turns // 2
    for cell in cells:
        assert found.of(cell)["test_accuracy"] == expected.of(cell)["test_accuracy"]
        assert found.of(cell)["epochs"] == expected.of(cell)["epochs"]
    assert not checkpoint.exists()
    assert list((began / "begun").iterdir()) == []


@pytest.mark.parametrize("shots", [None, 20])
def test_cells_with_the_same_first_stage_train_it_once(tmp_path, monkeypatch, shots):
    """A sweep over the teacher's strength, which is a setting of the second stage."""
    table = get_table("lambda")
    where = table.where({"student": ("wrn-16-2",)}, ("data=cifar100", "strength=0.1", "strength=10.0"))
    cells = [
        replace(cell, shots=shots).with_settings(epochs=6, batch_size=64 if shots is None else 16)
        for cell in cells_of(table, where, OverSeeds(2), tiny=True)
    ]
    together, turns = watched_turns(tmp_path / "together", cells)
    monkeypatch.setattr(trainings, "Beginnings", lambda: None)
    apart, more = watched_turns(tmp_path / "apart", cells)
    assert len(cells) == 4
    assert turns < 0.8 * more  # two first stages instead of four
    measured = [[ledger.of(cell)["test_accuracy"] for cell in cells] for ledger in (together, apart)]
    assert measured[0] == measured[1]


def test_students_are_kept_for_figures(tmp_path):
    """A figure takes them as they are; another grid neither takes nor changes them."""
    cells = tiny_cells()

    def kept_by(ledger, folder=tmp_path):
        runner = Bench(Ledger(tmp_path / ledger), Places(None, folder), "cpu", [].append, keep_students=True)
        runner.run(cells)
        return runner

    runner, said = kept_by("ledger.jsonl"), []
    studio = Studio(runner.ledger, runner.desk.places, "cpu", tiny=True, say=said.append)
    result = studio.student(cells[0])
    (folder,) = tmp_path.glob("students/*")
    assert result.accuracy == runner.ledger.of(cells[0])["test_accuracy"]
    assert (result.out, said) == (str(folder), [])
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == result.epochs
    assert list(tmp_path.glob("begun/*")) == []
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    (weights,) = tmp_path.glob("teachers/*/student.safetensors")
    tensors, texts = read_weights(weights)
    write_tensors(weights, {name: torch.zeros_like(value) for name, value in tensors.items()}, texts)
    assert kept_by("other.jsonl").ledger.of(cells[0])["test_accuracy"] != result.accuracy
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


@pytest.mark.parametrize("change", ["another teacher", "other images", "damaged", "nothing, spelt otherwise"])
def test_an_interrupted_training_goes_on_only_as_what_it_was(tmp_path, monkeypatch, change):
    cells = tiny_cells()
    _, turns = watched_turns(tmp_path / "whole", cells)
    began = tmp_path / "began"
    with pytest.raises(KeyboardInterrupt):
        watched_turns(began, cells, most=turns * 3 // 4)
    (checkpoint,) = began.glob("begun/*/checkpoint/last.safetensors")
    if change == "another teacher":
        (weights,) = began.glob("teachers/*/student.safetensors")
        tensors, texts = read_weights(weights)
        write_tensors(weights, {name: 1.01 * value for name, value in tensors.items()}, texts)
    elif change == "other images":
        monkeypatch.setattr(runs_run, "data_facts", lambda *given: {"digest": "another"})
    elif change == "damaged":
        checkpoint.write_bytes(b"no")
    else:
        monkeypatch.chdir(began)
        began = Path()
    _, more = watched_turns(began, cells)
    assert more < turns // 2 if "nothing" in change else more == turns
    assert not checkpoint.exists()


def test_what_is_in_the_ledger_leaves_no_checkpoint(tmp_path):
    """Interrupted after its record was written, before it was forgotten."""
    cells = tiny_cells()
    _, turns = watched_turns(tmp_path / "whole", cells)
    with pytest.raises(KeyboardInterrupt):
        watched_turns(tmp_path, cells, most=turns)
    assert len(list(tmp_path.glob("begun/*/checkpoint/*"))) == 1
    _, more = watched_turns(tmp_path, cells)
    assert (more, list(tmp_path.glob("begun/*"))) == (0, [])


def test_a_cell_that_another_process_trains_is_left_to_it(tmp_path):
    cells, said = [*tiny_cells(), *tiny_cells("refilled-emb")], []
    bench = Bench(Ledger(tmp_path / "ledger.jsonl"), Places(None, tmp_path), "cpu", said.append)
    with Places(None, tmp_path).begun_folder(cells[0]) as folder:
        bench.run(cells)
        assert (bench.ledger.has(cells[0]), bench.ledger.has(cells[1])) == (False, True)
        assert said[-1] == "1 cells are in training in another process, and left to it"
        assert list(folder.iterdir()) == []
    bench.run(cells)
    assert bench.ledger.has(cells[0])


def test_a_teacher_that_another_process_trains_is_waited_for(tmp_path):
    """And taken over where that one does not finish."""
    (cell,), said = tiny_cells(), []
    places = Places(None, tmp_path)
    bench = Bench(Ledger(tmp_path / "ledger.jsonl"), places, "cpu", said.append)
    job = bench.teachers.job(bench.teachers.expect([cell])[0])
    with places.teacher_to_train(cell.teacher) as ours:
        assert ours
        for _ in range(3):
            next(job)
        assert len(said) == 1
        assert "another process trains it, and is waited for" in said[0]
        assert not places.teacher_folder(cell.teacher).exists()
    for _ in job:
        pass
    assert bench.ledger.has(cell.teacher.as_cell())


def test_while_a_teacher_is_waited_for_others_have_their_turn(tmp_path):
    """Where there is one place for all: the student alone does not need that teacher."""
    cells, done = [*tiny_cells(), *tiny_cells("student")], []
    places = Places(None, tmp_path)
    with ExitStack() as elsewhere:
        elsewhere.enter_context(places.teacher_to_train(cells[0].teacher))
        too_long = Timer(30, elsewhere.close)
        too_long.start()

        def say(line):
            if line.startswith("["):
                done.append((line, too_long.is_alive()))
                too_long.cancel()
                elsewhere.close()  # the other process ends, without a teacher

        Bench(Ledger(tmp_path / "ledger.jsonl"), places, "cpu", say, together=1).run(cells)
    (first, in_time), _ = done
    assert "student, " in first
    assert in_time


def test_what_another_process_ends_just_before_the_lock_is_ours_is_not_done_again(tmp_path, monkeypatch):
    (cell,), said, trained = tiny_cells(), [], []
    bench = Bench(Ledger(tmp_path / "ledger.jsonl"), Places(None, tmp_path), "cpu", said.append)
    bench.make_teachers([cell])
    make, train = bench.trainings.run, bench.trainings._job
    monkeypatch.setattr(bench.trainings, "_job", lambda *given: trained.append(given) or train(*given))

    def late(cell, before):
        measured = {"test_accuracy": 0.125, "epochs": 1, "seconds": 1.0}
        Ledger(tmp_path / "ledger.jsonl").append(cell, measured, torch.device("cpu"))
        yield from make(cell, before)

    monkeypatch.setattr(bench.trainings, "run", late)
    bench.run([cell])
    assert trained == []
    assert "12.50 %" in said[-1]
    assert list(tmp_path.glob("begun/*")) == []


def test_two_processes_do_not_do_the_same(tmp_path):
    code = f"""
from pathlib import Path
from refilled.suite import Bench, Ledger, OverSeeds, Places, cells_of, get_table
table, work = get_table("one-stage"), Path({str(tmp_path)!r})
cells = cells_of(table, table.where({{"overlap": (50,)}}), OverSeeds(1), tiny=True)
Bench(Ledger(work / "ledger.jsonl"), Places(None, work), "cpu").run(cells)
"""
    both = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    keys = [record["key"] for record in Ledger(tmp_path / "ledger.jsonl").records]
    assert len(keys) == len(set(keys)) == 4  # three students and their teacher


def test_a_work_folder_that_is_a_file_is_named(tmp_path):
    (tmp_path / "file").write_text("mine")
    bench = Bench(Ledger(tmp_path / "ledger.jsonl"), Places(None, tmp_path / "file"), "cpu", [].append)
    with pytest.raises(UserError, match=r"cannot write to .*/file: not a directory; choose another --work"):
        bench.run(tiny_cells("student"))
    assert (tmp_path / "file").read_text() == "mine"


def test_a_cell_that_another_process_trains_as_a_teacher_is_left_to_it(tmp_path):
    (cell,), said = tiny_cells(), []
    places = Places(None, tmp_path)
    bench = Bench(Ledger(tmp_path / "ledger.jsonl"), places, "cpu", said.append)
    with places.teacher_to_train(cell.teacher):
        bench.run([cell.teacher.as_cell()])
    assert bench.ledger.records == []
    assert said == ["1 cells are in training in another process, and left to it"]
    with places.begun_folder(cell.teacher.as_cell()), places.teacher_to_train(cell.teacher) as ours:
        assert not ours


def test_a_checkpoint_can_be_forgotten_while_others_begin(tmp_path):
    """As two processes do that clean up after an interruption, and a third that trains."""
    places, (cell,) = Places(None, tmp_path), tiny_cells()

    def begin(count):
        for _ in range(count):
            with places.begun_folder(cell) as folder:
                if folder is not None:
                    (folder / "checkpoint").write_text("of it")
                    assert (folder / "checkpoint").read_text() == "of it"

    def forget(count):
        for _ in range(count):
            places.forget(cell)

    with ThreadPoolExecutor(3) as pool:
        for work in [pool.submit(do, 300) for do in (begin, forget, forget)]:
            work.result()
