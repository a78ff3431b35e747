import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from refilled.errors import UserError
from refilled.runs.shared import Shared
from refilled.suite import (
    TABLES,
    Bench,
    Ledger,
    OverSeeds,
    OverTasks,
    Places,
    cells_of,
    get_table,
    render,
    teachers,
)
from refilled.suite import run as suite_run
from refilled.suite.cell import pairs
from refilled.suite.old_and_new import teacher_with_probe
from refilled.training import LossIsNotFinite
from refilled.training.turns import WAITING


def bench(tmp_path, said=None) -> Bench:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    return Bench(ledger, Places(None, tmp_path), "cpu", (said if said is not None else []).append)


@pytest.mark.parametrize("name", TABLES)
def test_every_table_runs_tiny(tmp_path, name):
    """A cell of every row, in one column: of the recipes in that where all of them make sense."""
    table = get_table(name)
    axes = dict(table.axes) | ({"overlap": (100,)} if name == "recipes" else {})
    first = {axis: (str(values[0]),) for axis, values in axes.items() if axis not in (table.row, "data")}
    judge = table.judge(tiny=True) if table.judged is OverTasks else table.judge(seeds=1)
    cells = cells_of(table, first, judge, tiny=True)
    runner = bench(tmp_path)
    runner.run(cells)
    assert all(runner.ledger.has(cell) for cell in cells)
    assert "Accuracy" in render(table, runner.ledger, judge, tiny=True)


def test_finished_cells_are_not_run_again_and_an_interrupted_grid_goes_on(tmp_path):
    table = get_table("cifar100-gkd")
    where = table.where({"overlap": (60,), "student": ("wrn-16-2",), "method": ("student", "refilled")})
    cells = cells_of(table, where, OverSeeds(2), tiny=True)
    said = []
    bench(tmp_path, said).run(cells[:3])
    assert sum(line.startswith("[") for line in said) == 3
    again = []
    bench(tmp_path, again).run(cells)
    assert sum(line.startswith("[") for line in again) == 1
    assert not any(line.startswith("teacher") for line in again)
    third = []
    bench(tmp_path, third).run(cells)
    assert third == []
    text = render(table, Ledger(tmp_path / "ledger.jsonl"), OverSeeds(2), tiny=True)
    assert "±" in text
    assert "[" not in text.split("Accuracy")[0].replace("[n]", "")


def test_a_teacher_is_trained_beside_cells_that_need_none(tmp_path):
    """One place more than there are students alone: the teacher has it, and who needs it waits."""
    table = get_table("cifar100-gkd")
    where = table.where({"overlap": (60,), "student": ("wrn-16-2",), "method": ("student", "refilled")})
    cells = cells_of(table, where, OverSeeds(2), tiny=True)
    order, said = [], []
    runner = Bench(Ledger(tmp_path / "ledger.jsonl"), Places(None, tmp_path), "cpu", said.append, together=3)
    make = runner.trainings.run

    def watched(cell, before):
        order.append(cell.method)
        if cell.method == "refilled":
            assert not runner.teachers.expect([cell])
        yield from make(cell, before)

    runner.trainings.run = watched
    runner.run(cells[::-1])
    assert order == ["student", "student", "refilled", "refilled"]
    assert said[0].startswith("teacher: ")
    assert [runner.ledger.has(cell) for cell in cells] == [True] * 4
    alone = bench(tmp_path / "alone")
    alone.run(cells)
    for cell in cells:
        assert runner.ledger.of(cell)["test_accuracy"] == alone.ledger.of(cell)["test_accuracy"]


def two_teachers(epochs: tuple[int, int]):
    """Cells of a student alone and of students of two teachers, which have so many epochs."""
    table = get_table("cifar100-gkd")
    where = table.where({"overlap": (60,), "student": ("wrn-16-2",), "method": ("student", "refilled")})
    alone, taught = cells_of(table, where, OverSeeds(1), tiny=True)
    (teacher,) = taught.teachers
    others = [replace(teacher, settings=pairs(**(dict(teacher.settings) | {"epochs": n}))) for n in epochs]
    return [alone, *(replace(taught, teacher=other) for other in others)]


def begun_in_order(runner, cells, monkeypatch):
    """Run the cells; the places of those that began, in the order in which they did."""
    order, make = [], runner.trainings.run

    def watched(cell, before):
        order.append(cells.index(cell))
        yield from make(cell, before)

    monkeypatch.setattr(runner.trainings, "run", watched)
    runner.run(cells)
    return order


def make_bench(tmp_path, said, **settings) -> Bench:
    return Bench(
        Ledger(tmp_path / "ledger.jsonl"), Places(None, tmp_path), "cpu", said.append, together=3, **settings
    )


def test_a_cell_begins_when_its_own_teacher_is_there(tmp_path, monkeypatch):
    cells, said = two_teachers((12, 2)), []
    assert begun_in_order(make_bench(tmp_path, said), cells, monkeypatch) == [0, 2, 1]
    ended = [number for number, line in enumerate(said) if " %, " in line]
    assert said[ended[-1]].startswith("[3/3]")


def test_no_cell_begins_too_late_because_its_teacher_took_long(tmp_path, monkeypatch):
    said = []
    runner = make_bench(tmp_path, said, seconds=1.0)
    clock = {"now": 0.0}
    monkeypatch.setattr(suite_run, "time", SimpleNamespace(monotonic=lambda: clock["now"]))
    runner._began = 0.0
    job = runner.teachers.job

    def slow(teacher):
        yield from job(teacher)
        clock["now"] += 10.0

    monkeypatch.setattr(runner.teachers, "job", slow)
    cells = two_teachers((2, 3))
    assert begun_in_order(runner, cells, monkeypatch) == [0]
    assert said[-1] == "2 cells are left for another time"


def test_what_a_teacher_waits_for_is_not_its_own_time(tmp_path, monkeypatch):
    runner, clock = make_bench(tmp_path, [], seconds=100.0), {"now": 0.0}
    monkeypatch.setattr(suite_run, "time", SimpleNamespace(monotonic=lambda: clock["now"]))

    def job():
        for seconds, told in ((2.0, None), (50.0, WAITING), (50.0, WAITING), (3.0, None), (1.0, None)):
            clock["now"] += seconds
            yield told

    list(runner._timed("cells", job()))
    assert runner._longest == {"teachers": 0.0, "cells": 6.0}


def test_a_teacher_that_breaks_down_is_a_problem_of_its_own_students_alone(tmp_path, monkeypatch):
    alone, taught, other = two_teachers((2, 3))
    broken = replace(other.teacher, settings=pairs(**(dict(other.teacher.settings) | {"lr": 1e30})))
    lost = replace(other, teacher=replace(broken, method="refilled", taught_by=broken))
    said = []
    runner = make_bench(tmp_path, said)
    runner.run([alone, taught, lost])
    assert [runner.ledger.has(cell) for cell in (alone, taught, lost)] == [True, True, False]
    (line,) = [line for line in said if line.startswith("[") and "not finished" in line]
    assert "its teacher is not there: " in line
    with pytest.raises(LossIsNotFinite):
        make_bench(tmp_path, said).make_teachers([lost])


def test_a_teacher_that_is_a_cell_too_is_trained_once(tmp_path):
    _, taught, _ = two_teachers((2, 3))
    said = []
    runner = make_bench(tmp_path, said)
    runner.run([taught.teacher.as_cell(), taught])
    assert len(runner.ledger.records) == 2
    assert sum(line.startswith("teacher: ") for line in said) == 2
    assert sum(line.startswith("[") for line in said) == 2


def test_a_teacher_that_is_lost_and_trained_again_has_a_record_of_its_own(tmp_path):
    _, taught, _ = two_teachers((2, 2))
    make_bench(tmp_path, []).run([taught])
    shutil.rmtree(tmp_path / "teachers")
    runner = make_bench(tmp_path, [])
    runner.run([taught, taught.with_seed(1)])
    keys = [record["key"] for record in runner.ledger.records]
    assert keys.count(taught.teacher.as_cell().key) == 2
    assert keys.count(taught.key) == 1


def test_a_teacher_with_a_teacher_waits_for_it(tmp_path):
    table = get_table("cifar100-gkd")
    where = table.where({"overlap": (60,), "student": ("wrn-16-2",), "method": ("refilled",)})
    (cell,) = cells_of(table, where, OverSeeds(1), tiny=True)
    (first,) = cell.teachers
    second = replace(first, method="refilled", taught_by=first)
    assert second.with_those_before() == (first, second)
    said = []
    Bench(Ledger(tmp_path / "ledger.jsonl"), Places(None, tmp_path), "cpu", said.append, together=3).run(
        [replace(cell, teacher=second)]
    )
    assert [line.partition(" ")[0] for line in said] == ["teacher:"] * 4 + ["[1/1]"]
    assert "wrn-10-1, student" in said[0]
    assert "wrn-10-1, refilled" in said[2]
    assert len(list((tmp_path / "teachers").iterdir())) == 2


def test_a_teacher_that_had_fewer_settings_is_found(tmp_path):
    table = get_table("cifar100-gkd")
    where = table.where({"overlap": (60,), "student": ("wrn-16-2",), "method": ("refilled",)})
    cells = cells_of(table, where, OverSeeds(1), tiny=True)
    runner = bench(tmp_path)
    runner.make_teachers(cells)
    (folder,) = (tmp_path / "teachers").iterdir()
    (teacher,) = cells[0].teachers
    older = folder.rename(folder.with_name(folder.name.replace(teacher.as_cell().key, "0123456789abcdef")))
    described = json.loads((older / "cell.json").read_text())
    del described["settings"]["train"]["keep_level"]  # as if it had been written before there was one
    (older / "cell.json").write_text(json.dumps(described))
    said = []
    again = bench(tmp_path, said)
    again.make_teachers(cells)
    assert said == []
    assert again.desk.places.teacher_folder(teacher) == older
    (older / "cell.json").write_text("{")  # what cannot be read is no teacher
    assert again.desk.places.teacher_folder(teacher) == folder


def test_the_joined_head_is_the_teachers_and_the_regressions_alone(tmp_path):
    """No fresh weight is left in it: whatever the random numbers, it is the same."""
    table = get_table("cub-incremental")
    where = table.where({"student": ("mobilenet-1",), "method": ("teacher-lr",)}, ("criterion=old",))
    cells = cells_of(table, where, OverSeeds(1), tiny=True)
    runner = bench(tmp_path)
    runner.make_teachers(cells)
    heads = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        joined, _, _ = teacher_with_probe(*runner.trainings._frozen(cells[0], Shared(1)))
        heads.append(joined.head)
    assert torch.equal(heads[0].weight, heads[1].weight)
    assert torch.equal(heads[0].bias, heads[1].bias)
    assert heads[0].bias.any(), "as the classifiers have them"


def test_no_cell_begins_that_would_end_too_late(tmp_path, monkeypatch):
    """Each cell takes ten seconds by this clock, and 25 are given: the third would end at 30."""
    clock = {"now": 0.0}
    monkeypatch.setattr(suite_run, "time", SimpleNamespace(monotonic=lambda: clock["now"]))
    table = get_table("cifar100-gkd")
    where = table.where({"overlap": (60,), "student": ("wrn-16-2",), "method": ("student",)})
    cells = cells_of(table, where, OverSeeds(4), tiny=True)
    said = []
    runner = Bench(
        Ledger(tmp_path / "ledger.jsonl"), Places(None, tmp_path), "cpu", said.append, seconds=25.0
    )
    make = runner.trainings.run

    def slow(cell, before):
        for measured in make(cell, before):
            clock["now"] += 10.0 if measured is not None else 0.0
            yield measured

    monkeypatch.setattr(runner.trainings, "run", slow)
    runner.run(cells)
    assert [runner.ledger.has(cell) for cell in cells] == [True, True, False, False]
    assert said[-1] == "2 cells are left for another time"


def test_a_cell_that_breaks_down_does_not_end_the_others(tmp_path):
    table = get_table("cifar100-gkd")
    where = table.where({"overlap": (60,), "student": ("wrn-16-2",), "method": ("student",)})
    first, second = cells_of(table, where, OverSeeds(2), tiny=True)
    said = []
    runner = bench(tmp_path, said)
    runner.run([first.with_settings(lr=1e30), second])
    assert runner.ledger.has(second)
    assert len(runner.ledger.records) == 1
    assert sum("not finished, " in line and "Try a smaller --lr" in line for line in said) == 1


def test_one_by_one_or_in_turns_makes_no_difference(tmp_path):
    table = get_table("cifar100-gkd")
    where = table.where({"overlap": (60,), "student": ("wrn-16-2",), "method": ("student", "refilled")})
    cells = cells_of(table, where, OverSeeds(2), tiny=True)
    found = []
    for at_once in (1, 3):
        ledger = Ledger(tmp_path / f"{at_once}.jsonl")
        Bench(ledger, Places(None, tmp_path), "cpu", [].append, at_once).run(cells)
        found.append([record["test_accuracy"] for record in ledger.find(cells)])
    assert found[0] == found[1]


def test_without_data_it_says_where_to_put_it(tmp_path, monkeypatch):
    monkeypatch.delenv("REFILLED_DATA", raising=False)
    table = get_table("cifar100-gkd")
    where = table.where({"overlap": (60,), "student": ("wrn-16-2",), "method": ("student",)})
    with pytest.raises(UserError, match="Give --data DIR"):
        bench(tmp_path).run(cells_of(table, where, OverSeeds(1)))


def test_a_page_says_how_good_the_teachers_are(tmp_path):
    table = get_table("cifar100-gkd")
    cells = cells_of(table, table.where({"overlap": (60,), "method": ("refilled",)}), OverSeeds(1), tiny=True)
    runner = bench(tmp_path)
    runner.run(cells[:1])
    (teacher,) = runner.ledger.filed(cells[0].teacher.as_cell().to_json())
    known = f"classes {cells[0].teacher.classes}: {100 * teacher['test_accuracy']:.2f} %."
    assert known in render(table, runner.ledger, OverSeeds(1), tiny=True)
    runner.ledger.append(cells[0].teacher.as_cell(), teacher | {"test_accuracy": 0.125}, torch.device("cpu"))
    page = render(table, runner.ledger, OverSeeds(1), tiny=True)
    assert "trained again where there are several" in page
    assert f"{known[:-3]} and 12.50 %." in page


def test_a_table_without_numbers_says_so(tmp_path):
    text = render(get_table("lambda"), Ledger(tmp_path / "none.jsonl"))
    assert "Nothing has been measured yet" in text


def test_old_and_new_classes_are_judged_together(tmp_path):
    table = get_table("cub-incremental")
    where = table.where(
        {"student": ("mobilenet-1",), "method": ("teacher-lr", "student")}, ("criterion=old",)
    )
    cells = cells_of(table, where, OverSeeds(1), tiny=True)
    runner = bench(tmp_path)
    runner.run(cells)
    for record in runner.ledger.find(cells):
        old, new = record["joint_old"], record["joint_new"]
        assert 0 <= min(old, new) <= record["joint_all"] <= max(old, new) <= 1
        assert record["joint_harmonic"] == pytest.approx(2 * old * new / (old + new) if old + new else 0)
        assert record["joint_new"] == pytest.approx(record["test_accuracy"])
    page = render(table, runner.ledger, OverSeeds(1), tiny=True)
    assert "## criterion harmonic" in page


def test_few_images_are_not_compiled_for(tmp_path):
    runner = make_bench(tmp_path, [], compile=True).trainings
    table = get_table("shots")
    few = next(table.cell(point) for point in table.points({"method": ("refilled",), "shots": (10,)}))
    assert runner._settings(few)["compile"] is False
    assert runner._settings(replace(few, shots=None))["compile"] is True


def test_teachers_are_not_compiled(tmp_path, monkeypatch):
    asked = []

    def begun(*given, **settings):
        asked.append(settings["compile"])
        raise LossIsNotFinite("as far as this test goes")

    monkeypatch.setattr(teachers, "Run", begun)
    runner = make_bench(tmp_path, [], compile=True)
    table = get_table("cifar100-standard")
    runner.run(cells_of(table, {"method": ("kd",), "student": ("wrn-16-2",)}, OverSeeds(1), tiny=True))
    assert asked == [False]
