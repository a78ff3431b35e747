"""What a bench refuses before it trains anything, and what it leaves for another time."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from refilled.errors import UserError
from refilled.suite import Bench, Ledger, OverSeeds, Places, cells_of, get_table
from refilled.suite import run as suite_run


def test_a_teacher_that_does_not_fit_the_time_ends_the_run_for_its_cells(tmp_path, monkeypatch):
    """At once: not in waiting for it until the time is over."""
    table = get_table("cifar100-gkd")
    where = table.where({"overlap": (60,), "student": ("wrn-16-2",), "method": ("refilled",)})
    (cell,) = cells_of(table, where, OverSeeds(1), tiny=True)
    cells = [cell, replace(cell, teacher=replace(cell.teacher, seed=1))]
    said, now, pauses = [], {"s": 0.0}, []
    runner = Bench(
        Ledger(tmp_path / "ledger.jsonl"), Places(None, tmp_path), "cpu", said.append, together=1,
        seconds=1000.0,
    )  # fmt: skip
    runner._began = 0.0
    monkeypatch.setattr(suite_run, "time", SimpleNamespace(monotonic=lambda: now["s"]))
    job, pause = runner.teachers.job, suite_run._pause

    def slow(teacher):
        yield from job(teacher)
        now["s"] += 600.0

    def watched():
        pauses.append(1)
        now["s"] += 10.0
        return pause()

    monkeypatch.setattr(runner.teachers, "job", slow)
    monkeypatch.setattr(suite_run, "_pause", watched)
    runner.run(cells)
    assert list(map(runner.ledger.has, cells)) == [True, False]
    assert said[-1] == "1 cells are left for another time"
    assert pauses == []


def test_data_that_are_not_there_are_refused_before_anything_is_trained(tmp_path):
    (tmp_path / "data" / "CUB_200_2011").mkdir(parents=True)
    said, table = [], get_table("cub-to-dogs")
    runner = Bench(Ledger(tmp_path / "ledger.jsonl"), Places(tmp_path / "data", tmp_path), "cpu", said.append)
    where = {"student": ("mobilenet-0.25",), "method": ("refilled",)}
    with pytest.raises(UserError, match="data holds no Stanford Dogs"):
        runner.run(cells_of(table, where, OverSeeds(1)))
    assert said == []


def test_a_method_for_the_same_classes_is_refused_before_anything_is_trained(tmp_path):
    table, said = get_table("cifar100-gkd"), []
    (cell,) = cells_of(
        table, {"overlap": (60,), "student": ("wrn-16-2",), "method": ("refilled",)}, OverSeeds(1), tiny=True
    )
    runner = Bench(Ledger(tmp_path / "ledger.jsonl"), Places(None, tmp_path), "cpu", said.append)
    for method in ("kd", "kd-vid", "refilled-kd"):
        other = replace(cell, method=method, settings=(("epochs", 2),))
        with pytest.raises(UserError, match=f"^digits .* {method} needs a teacher of the same classes"):
            runner.run([cell, other])
    assert said == []
    assert not (tmp_path / "teachers").exists()
    same = replace(cell, method="kd", settings=(("epochs", 2),), classes=cell.teacher.classes)
    runner.check([same, replace(same, teacher=replace(cell.teacher, classes=None), classes=None)])


def test_other_images_are_another_world():
    """So that what is opened for one cell is not taken for another."""
    cell = get_table("cub-gkd").cell({"student": "mobilenet-0.25", "overlap": 50, "method": "student"})
    assert cell.with_settings(epochs=3, lr=0.3).world == cell.world
    others = {"test_fraction": 0.5, "val_fraction": 0.1, "split_seed": 3, "augment": "none", "views": 2}
    for name, value in others.items():
        assert cell.with_settings(**{name: value}).world != cell.world
