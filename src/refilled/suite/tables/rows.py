"""What the rows of a table mean: a method by its name, or one of the baselines around it."""

from dataclasses import replace
from typing import Any

from refilled.methods import get_method
from refilled.methods.refilled_settings import ClassifierSettings
from refilled.runs.settings import field_names
from refilled.suite.baselines import TEACHER_BASELINES
from refilled.suite.cell import Cell, pairs

FINE_TUNING = {"lr": 1e-4, "epochs": 50}
"""As in the paper."""
HALF = "student-half"
"""The student alone with half the epochs: the paper's convention, which gives each of two stages as many
epochs as the student alone has."""
TWO_STAGES = "refilled-two-stages"
"""The paper's method; ``refilled`` is what measured best."""
PAPERS = "refilled-paper"
"""The same with the paper's own settings."""
STEADY = "refilled-steady"
"""What ``refilled`` was before: the teacher does not fade, and its head is not heard."""
GROUPED = "refilled-grouped"
"""``refilled`` with four images of a class side by side in stage 1, for batches smaller than the number of
classes."""
_MEANT: dict[str, tuple[str, dict[str, Any]]] = {
    HALF: ("student", {}),
    STEADY: ("refilled", {"fade": 0.0, "head_share": 0.0}),
    GROUPED: ("refilled", {"group": 4}),
}
"""Method and settings of rows that are no method's name."""
_OF_IMAGES = ("val_fraction", "test_fraction")
"""Settings that say which images there are."""
STANDARD_KD = {"strength": 1.0, "tau_teacher": 4.0}
"""Settings of the paper where classes are the same."""
_STANDARD: dict[str, dict[str, Any]] = {"rkd": {"embedding_share": 0.0}}
"""Of other methods there: relations beside cross-entropy, as in public comparisons."""

OUR_RECIPE = (
    "`refilled` is our default and another recipe than the paper's, which is `refilled-two-stages` and, with "
    "the paper's own settings, `refilled-paper`; the published ReFilled stands beside each of them that is "
    "here."
)
"""For the notes of tables."""
GKD_NOTE = f"The published student alone has the epochs of one stage: it stands beside `{HALF}`. {OUR_RECIPE}"

GKD_ROWS = (
    "teacher-1nn", "teacher-ncm", "teacher-lr", "fine-tune", HALF, "student", "rkd", "aml", "seed",
    "refilled-emb", "refilled-lkd", "refilled-minus", PAPERS, TWO_STAGES, "refilled-few",
    STEADY, "refilled",
)  # fmt: skip


def fill(cell: Cell, row: str, **own: Any) -> Cell | None:
    """The cell of that row; None where the row makes no sense for the cell's networks.

    Args:
        cell: data, student, teacher and training of the table; its method is not looked at.
        row: a method's name, ``student-half``, ``refilled-steady``, or a baseline on the teacher's embedding.
        own: settings of the method; those that it does not have are left out.
    """
    if row in TEACHER_BASELINES:
        same = cell.teacher is not None and cell.student == cell.teacher.network
        data_only = {name: value for name, value in cell.settings if name in _OF_IMAGES}
        return replace(cell, method=row, settings=pairs(**data_only)) if same else None
    if row == "fine-tune":
        same = cell.teacher is not None and cell.student == cell.teacher.network
        return replace(cell, method=row, settings=_with(cell, **FINE_TUNING)) if same else None
    method, meant = meant_by(row)
    known = field_names(get_method(method).settings)
    chosen = meant | {name: value for name, value in own.items() if name in known}
    if method == "student":
        epochs = dict(cell.settings)["epochs"] // (2 if row == HALF else 1)
        return replace(cell, method=method, teacher=None, settings=_with(cell, epochs=epochs, **chosen))
    return replace(cell, method=method, settings=_with(cell, **chosen))


def fill_standard(cell: Cell, row: str, **own: Any) -> Cell | None:
    """The same where teacher and student know the same classes: there the paper's method has other settings,
    and RKD one stage, while ``refilled``, now and before, and all others have their own as ever."""
    classifier = issubclass(get_method(meant_by(row)[0]).settings, ClassifierSettings)
    is_papers = classifier and row not in ("refilled", STEADY, GROUPED)
    usual = STANDARD_KD if is_papers else _STANDARD.get(row, {})
    return fill(cell, row, **(usual | own))


def meant_by(row: str) -> tuple[str, dict[str, Any]]:
    """The method of a row, and what it is set to."""
    return _MEANT.get(row, (row, {}))


def published_row(row: str) -> str:
    """The row of the paper that one of ours stands beside: its method is the two stages, with settings that
    measured best or its own; and ``refilled``, which is another recipe, stands beside it too."""
    return {TWO_STAGES: "refilled", PAPERS: "refilled"}.get(row, row)


def published_gkd_row(row: str) -> str:
    """The same in tables of GKD, where the paper's student alone has half our epochs."""
    return {HALF: "student", "student": ""}.get(row, published_row(row))


def _with(cell: Cell, **changes: Any) -> tuple[tuple[str, Any], ...]:
    return pairs(**(dict(cell.settings) | changes))
