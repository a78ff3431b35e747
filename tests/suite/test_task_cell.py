"""Cells of tasks: their keys, and parts that become one record."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from refilled.errors import UserError
from refilled.suite import Ledger, OverTasks, TaskCell, TeacherCell, get_table
from refilled.suite.cell import pairs
from refilled.suite.kinds import key_of

CPU = torch.device("cpu")
NETWORK = TeacherCell("convnet-2", "digits", "0:5", settings=pairs(epochs=2))
LEDGER = Path(__file__).parents[2] / "results" / "ledger.jsonl"


def cell(method: str = "fine-tune", tasks: int = 6, **settings) -> TaskCell:
    return TaskCell("digits", "5:10", NETWORK, method, 2, queries=4, tasks=tasks, settings=pairs(**settings))


def test_a_key_is_that_of_the_tasks_however_many():
    base = cell()
    assert base.key == cell(steps=50).key == cell(tasks=10_000).key  # 50 is the default
    assert base.key == replace(base, val_classes="0:5").key
    others = [
        cell(steps=99), cell("student"), replace(base, shots=3), replace(base, ways=4), replace(base, seed=1),
        replace(base, queries=5), replace(base, classes="4:9"), replace(base, views=3),
        replace(base, teacher=NETWORK), replace(base, network=replace(NETWORK, seed=1)),
    ]  # fmt: skip
    assert len({other.key for other in [*others, base]}) == 11
    assert base.to_json()["kind"] == "tasks"
    assert key_of(base.to_json()) == base.key
    assert base.describe() == "digits 5:10, 5-way 2-shot: convnet-2, fine-tune"


def test_what_is_younger_than_a_description_counts_with_its_default():
    described = cell("refilled").to_json()
    del described["settings"]["strength"], described["network"]["settings"]["train"]["schedule"]
    assert key_of(described) == cell("refilled").key
    described["settings"]["steps"] = 7
    assert key_of(described) == cell("refilled", steps=7).key
    with pytest.raises(ValueError, match="unknown kind of cell 'other'"):
        key_of(described | {"kind": "other"})


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: cell("fine-tun").key, "unknown few-shot method 'fine-tun'; did you mean 'fine-tune'"),
        (lambda: cell("1nn", steps=3).key, "unknown setting of few-shot method 1nn 'steps'"),
        (lambda: cell(steps=0).key, "steps must be at least 1"),
        (lambda: cell(tasks=0), "tasks must be at least 1, not 0"),
    ],
)
def test_what_makes_no_sense_is_refused(made, said):
    with pytest.raises(UserError, match=said):
        made()


def test_parts_become_one_record(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    right = [10, 15, 20, 5, 0, 12]
    assert ledger.of(cell()) is None
    ledger.append(cell(), cell().part(0, right[:2], 3.0, 10.0), CPU)
    assert not ledger.has(cell())
    assert ledger.has(cell(tasks=2))
    ledger.append(cell(), cell().part(4, right[4:], 1.0, 10.0), CPU)  # a gap: tasks 2 and 3 are not there
    assert ledger.of(cell())["tasks"] == 2
    ledger.append(cell(), cell().part(1, right[1:4], 1.0, 30.0), CPU)  # overlaps with the first
    again = Ledger(ledger.path)
    (record,) = again.find([cell()])
    assert record["right"] == right
    assert record["test_accuracy"] == pytest.approx(sum(right) / 6 / 20)
    deviation = torch.tensor(right).div(20).std().item()
    assert record["half_interval"] == pytest.approx(2.571 * deviation / 6**0.5, rel=1e-4)
    assert (record["tasks"], record["seconds"], record["tasks_per_second"]) == (6, 5.0, 14.0)
    fewer = again.of(cell(tasks=3))
    assert fewer["right"] == right[:3]
    assert fewer["test_accuracy"] == 0.75
    assert again.has(cell(tasks=3))
    assert not again.has(cell(tasks=7))
    assert json.loads(ledger.path.read_text().splitlines()[0])["right"] == "10 15"
    assert cell().figures(record).startswith("51.67 ± ")


def test_a_page_has_all_tasks_that_were_measured(tmp_path):
    """More than the paper's too."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert OverTasks().for_page([cell()], ledger) == OverTasks(10_000)
    ledger.append(cell(), cell().part(0, [10] * 12_000, 3.0, 10.0), CPU)
    judge = OverTasks().for_page([cell("student"), cell()], ledger)
    assert judge == OverTasks(12_000)
    (record,) = ledger.find(judge.runs(cell()))
    assert record["tasks"] == 12_000


def test_one_task_has_no_interval():
    record = cell(tasks=1).merged([cell().part(0, [10], 1.0, 1.0)])
    assert record["half_interval"] is None
    assert "±" not in cell().figures(record)


def test_the_published_ledger_still_counts():
    """Records that were written before there were kinds of cells."""
    ledger = Ledger(LEDGER)
    assert ledger.broken == []
    teacher = (
        get_table("cifar100-gkd").cell({"student": "wrn-16-2", "overlap": 60, "method": "refilled"}).teacher
    )
    assert ledger.has(teacher.as_cell())
