"""The table of few-shot tasks: what its cells are, and what is published."""

from pathlib import Path

import pytest
import torch

from refilled.errors import UserError
from refilled.fewshot import METHODS, settings_of
from refilled.suite import Ledger, cells_of, get_table
from refilled.suite.tables import fewshot
from refilled.suite.tables.fewshot_choices import best_of
from refilled.suite.tables.fewshot_settings import CANDIDATES, CHOSEN, SCHEDULES

TABLE, CHOICES = get_table("miniimagenet-fewshot"), get_table("fewshot-choices")
TRIAL = 200  # tasks that choices were made on


def test_every_cell_exists():
    points = list(TABLE.points())
    assert len(points) == 2 * len(METHODS) * 4
    for point in points:
        cell = TABLE.cell(point)
        assert (cell.classes, cell.val_classes, cell.network.classes) == ("80:100", "64:80", "0:64")
        assert (cell.ways, cell.queries, cell.network.network) == (5, 15, "convnet-4")
        assert len(cell.key) == 16
        published = TABLE.published(point)
        assert published is None or 40 < published < 85


def test_nothing_is_run_twice():
    cells = cells_of(TABLE, {}, TABLE.judge())
    assert len(cells) == len({cell.key for cell in cells}) == 4 * (len(METHODS) + 2)  # two ask two teachers
    assert all(cell.teacher is None for cell in cells if not cell.method.startswith("refilled"))
    assert {cell.tasks for cell in cells} == {10_000}


def test_published_numbers_are_where_they_belong():
    at = {"teacher": "resnet-12", "shots": 1}
    assert TABLE.published(at | {"method": "refilled"}) == 55.13
    assert TABLE.published({"teacher": "convnet-4", "shots": 30, "method": "refilled"}) == 78.98
    assert TABLE.published(at | {"method": "feat"}) == 55.15
    assert TABLE.published(at | {"shots": 10, "method": "maml"}) is None
    assert TABLE.published(at | {"method": "refilled-scratch"}) is None


def test_gains_are_over_the_same_student_with_as_many_steps(monkeypatch):
    point = {"teacher": "resnet-12", "method": "refilled", "shots": 5}
    assert TABLE.alone(point).key == TABLE.cell(point | {"method": "fine-tune"}).key
    assert TABLE.alone(point | {"method": "refilled-scratch"}).method == "student"
    assert TABLE.alone(point | {"method": "fine-tune"}) is None
    monkeypatch.setitem(SCHEDULES, "refilled", {"steps": 40})
    monkeypatch.setitem(CHOSEN, ("refilled", "resnet-12", 5), "imitation, lr 0.003")
    monkeypatch.setitem(CHOSEN, ("fine-tune", None, 5), "lr 0.001")
    for shots in (5, 10):
        there = point | {"shots": shots}
        assert (
            dict(TABLE.cell(there).settings).items() >= {"steps": 40, "lr": 0.003, "imitation": 5.0}.items()
        )
        alone = dict(TABLE.alone(there).settings)
        assert alone == {"steps": 40, "lr": 0.001, "head_lr": 0.01, "statistics": "known", "head": "centres"}
    monkeypatch.delitem(CHOSEN, ("refilled", "resnet-12", 1), raising=False)
    assert dict(TABLE.cell(point | {"shots": 1}).settings) == {"steps": 40}
    cells = cells_of(
        TABLE, {"method": ("refilled",), "teacher": ("resnet-12",), "shots": (5,)}, TABLE.judge()
    )
    assert [cell.method for cell in cells] == ["refilled", "fine-tune"]


def test_candidates_are_settings_and_differ():
    for method, candidates in CANDIDATES.items():
        made = [settings_of(method, **SCHEDULES.get(method, {}), **own) for own in candidates.values()]
        assert len(set(made)) == len(candidates)


def test_candidates_are_judged_on_validation_tasks():
    points = list(CHOICES.points())
    assert {(p["method"], p["candidate"]) for p in points} == {
        (method, name) for method, own in CANDIDATES.items() for name in own
    }
    assert {CHOICES.cell(point).classes for point in points} == {"64:80"}


def test_what_was_chosen_is_the_best_in_the_ledger():
    ledger = Ledger(Path(__file__).parents[2] / "results" / "ledger.jsonl")
    assert best_of(ledger, TRIAL) == CHOSEN


def test_the_best_needs_all_candidates(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    cells = {
        name: CHOICES.cell({"teacher": "resnet-12", "method": "lr", "candidate": name, "shots": 5})
        for name in CANDIDATES["lr"]
    }
    for accuracy, cell in zip((40, 60, 50), cells.values()):
        assert best_of(ledger, 2) == {}
        ledger.append(cell, cell.part(0, [accuracy, accuracy], 1.0, 2.0), torch.device("cpu"))
    assert best_of(ledger, 2) == {("lr", None, 5): "penalty 10"}
    assert best_of(ledger, 3) == {}


def test_what_it_does_not_have_is_refused():
    for named, said in (
        ({"shots": (2,)}, "unknown shots '2'"),
        ({"method": ("refiled",)}, "unknown method 'refiled'; did you mean 'refilled'"),
        ({"teacher": ("resnet-18",)}, "unknown teacher 'resnet-18'; did you mean 'resnet-12'"),
    ):
        with pytest.raises(UserError, match=said):
            TABLE.where(named)
    with pytest.raises(UserError, match="resnet-18 is no network of this table"):
        fewshot.cell("refilled", "resnet-18", 5)
