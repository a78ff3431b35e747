"""One-step incremental learning on CUB: old and new classes, without the old ones' images."""

from dataclasses import replace
from typing import Any

from refilled.suite.cell import Cell, pairs
from refilled.suite.old_and_new import CRITERIA
from refilled.suite.table import Point, Table
from refilled.suite.tables import cub, published
from refilled.suite.tables.published import MOBILENETS, lookup
from refilled.suite.tables.rows import OUR_RECIPE, STEADY, TWO_STAGES, meant_by, published_row

EPOCHS = 100
"""Of a student; its teacher has those of all tables of CUB."""
ROWS = (
    "teacher-lr",
    "fine-tune",
    "ewc",
    "student",
    "rkd",
    "refilled-emb",
    "refilled-minus",
    TWO_STAGES,
    "refilled-few",
    STEADY,
    "refilled",
)
_AS_THE_TEACHER = ("teacher-lr", "fine-tune", "ewc")  # need the teacher's own architecture


def cell(row: str, student: str) -> Cell | None:
    """At overlap 0 %: 100 old classes, 100 new ones; the student keeps the old ones."""
    base = cub.gkd("refilled", student, 0, training=cub.TRAINING)
    if base is None or base.teacher is None:
        return None
    if row in _AS_THE_TEACHER and student != base.teacher.network:
        return None
    settings: dict[str, Any] = dict(base.settings) | {"epochs": EPOCHS, "keep_teacher_classes": True}
    if row in ("fine-tune", "ewc"):  # they start from the teacher's weights, which 0.1 would blow away
        settings |= {"lr": 0.01, "keep_weight": 0.0}
    if row == "teacher-lr":
        settings = {name: settings[name] for name in ("val_fraction", "image_size", "keep_teacher_classes")}
    method, meant = meant_by(row)
    return replace(base, method=method, settings=pairs(**(settings | meant)))


def _published(point: Point) -> float | None:
    if point["student"] == "mobilenet-1" and point["method"] in published.INCREMENTAL_TEACHER:
        return published.INCREMENTAL_TEACHER[point["method"]][CRITERIA.index(point["criterion"])]
    return lookup(
        published.INCREMENTAL[point["criterion"]],
        published_row(point["method"]),
        MOBILENETS,
        point["student"],
    )


CUB_INCREMENTAL = Table(
    name="cub-incremental",
    title="CUB, 100 old classes whose images are gone and 100 new ones: accuracy over all 200",
    source="Table of one-step incremental learning; its ReFilled-EMB and -minus only for mobilenet-1",
    axes={"criterion": CRITERIA, "method": ROWS, "student": MOBILENETS},
    cell=lambda p: cell(p["method"], p["student"]),
    published=_published,
    measure=lambda p: f"joint_{p['criterion']}",
    alone=lambda p: cell("student", p["student"]),
    note=(
        f"CUB's images are divided as officially. Students train for {EPOCHS} epochs. "
        "Every row but the first three learns the old classes from the "
        "teacher's predictions on the new images. To compare old classes with new ones, biases are dropped "
        "and class weights have one length, as in the paper; but teacher-lr, and ReFilled with its second "
        "stage, have one factor for all new classes ([why](keeping.md)). *old* and *new* are accuracies "
        "among all 200 classes of test images of either kind, *all* of both together, *harmonic* is the "
        f"harmonic mean of *old* and *new*. {OUR_RECIPE}"
    ),
)
