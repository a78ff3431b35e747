"""What the rows of a table mean: a method by its name, or one of the baselines around it."""

from dataclasses import replace
from typing import Any

from refilled.methods import get_method
from refilled.runs.settings import field_names
from refilled.suite.baselines import TEACHER_BASELINES
from refilled.suite.cell import Cell, pairs

FINE_TUNING = {"lr": 1e-4, "epochs": 50}
"""As in the paper."""
HALF = "student-half"
"""The student alone with half the epochs: the paper's convention, which gives each of two stages as many
epochs as the student alone has."""

GKD_ROWS = (
    "teacher-1nn", "teacher-ncm", "teacher-lr", "fine-tune", HALF, "student", "rkd", "aml", "seed",
    "refilled-emb", "refilled-lkd", "refilled-minus", "refilled-paper", "refilled-two-stages", "refilled-few",
    "refilled",
)  # fmt: skip


def fill(cell: Cell, row: str, **own: Any) -> Cell | None:
    """The cell of that row; None where the row makes no sense for the cell's networks.

    Args:
        cell: data, student, teacher and training of the table; its method is not looked at.
        row: a method's name, ``student-half``, or a baseline on the teacher's embedding.
        own: settings of the method; those that it does not have are left out.
    """
    if row in TEACHER_BASELINES:
        same = cell.teacher is not None and cell.student == cell.teacher.network
        data_only = {name: value for name, value in cell.settings if name == "val_fraction"}
        return replace(cell, method=row, settings=pairs(**data_only)) if same else None
    if row == "fine-tune":
        same = cell.teacher is not None and cell.student == cell.teacher.network
        return replace(cell, method=row, settings=_with(cell, **FINE_TUNING)) if same else None
    if row in ("student", HALF):
        epochs = dict(cell.settings)["epochs"] // (2 if row == HALF else 1)
        return replace(cell, method="student", teacher=None, settings=_with(cell, epochs=epochs))
    known = field_names(get_method(row).settings)
    chosen = {name: value for name, value in own.items() if name in known}
    return replace(cell, method=row, settings=_with(cell, **chosen))


def published_row(row: str) -> str:
    """The row of the paper that a row of GKD stands beside: its student alone has half our epochs, and its
    method is the two stages."""
    return {HALF: "student", "student": "", "refilled-two-stages": "refilled"}.get(row, row)


def _with(cell: Cell, **changes: Any) -> tuple[tuple[str, Any], ...]:
    return pairs(**(dict(cell.settings) | changes))
