"""Our gains stand beside the published ones, over the student that the paper compares with."""

from dataclasses import replace

import pytest
import torch

from refilled.suite import Cell, Ledger, OverSeeds, Table
from refilled.suite.cell import pairs
from refilled.suite.pages.gains import against_published

PAPER = {"student-half": 70.0, "student": None, "rkd": 71.0, "refilled": 72.0, "aml": 75.0}


def cell(point) -> Cell:
    half = point["method"] == "student-half"
    settings = pairs(epochs=2 if half else 4, lr=point["overlap"] / 100 + 0.1)
    return Cell("digits", "convnet-1", "student" if half else point["method"], settings=settings)


def table(*rows: str) -> Table:
    return Table(
        "t", "T", "none", {"student": ("s",), "method": rows, "overlap": (0, 60)}, cell,
        lambda p: PAPER[p["method"]] if p["overlap"] == 60 else None,
    )  # fmt: skip


@pytest.fixture
def ledger(tmp_path):
    found = Ledger(tmp_path / "ledger.jsonl")
    for method, accuracies in {
        "student-half": (0.60, 0.62), "student": (0.63, 0.64), "rkd": (0.60,), "refilled": (0.63, 0.66),
    }.items():  # fmt: skip
        for seed, accuracy in enumerate(accuracies):
            run = cell({"method": method, "overlap": 60}).with_seed(seed)
            found.append(run, {"test_accuracy": accuracy, "epochs": 4, "seconds": 1.0}, torch.device("cpu"))
    return found


def test_over_the_student_with_half_the_epochs(ledger):
    lines = against_published(table(*PAPER), ledger, OverSeeds(2), {"student": "s"})
    assert "over `student-half`, which has half the epochs" in lines[0]
    assert lines[2:6] == [
        "| method | overlap 60 |",
        "| --- | --- |",
        "| rkd | +0.00 (paper +1.00) |",  # of the seed that both have
        "| refilled | +3.50 (paper +2.00) |",
    ]
    assert lines[-1] == "Above the published gain: refilled at 60. Below: rkd at 60."


def test_nothing_where_the_paper_has_no_student(ledger):
    assert against_published(table("student", "refilled"), ledger, OverSeeds(2), {"student": "s"}) == []
    assert against_published(table("rkd", "refilled"), ledger, OverSeeds(2), {"student": "s"}) == []


def test_a_run_without_the_measure_is_left_out(ledger):
    """Not each run has looked at the nearest class mean."""
    of_means = replace(table(*PAPER), measure="ncm")
    assert against_published(of_means, ledger, OverSeeds(2), {"student": "s"}) == []
