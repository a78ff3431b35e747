"""One-step incremental learning on CUB: old and new classes, without the old ones' images."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from refilled import evaluation
from refilled.data import Batches
from refilled.evaluation import Outputs
from refilled.methods import get_method
from refilled.methods.keeping import all_classes, calibrate, columns_of, level
from refilled.models import Network
from refilled.runs.holding import choose_holding
from refilled.runs.prepare import read_splits, wanted_size
from refilled.runs.run import Run
from refilled.runs.settings import sort_settings
from refilled.runs.shared import Shared
from refilled.suite import cub, published
from refilled.suite.cell import Cell, TeacherCell, pairs
from refilled.suite.places import Places
from refilled.suite.published import MOBILENETS, lookup
from refilled.suite.rows import OUR_RECIPE, STEADY, TWO_STAGES, meant_by, published_row
from refilled.suite.runner import Desk
from refilled.suite.table import Point, Table
from refilled.training import Reporter

CRITERIA = ("old", "new", "all", "harmonic")
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


def judge_student(run: Run, cell: Cell, desk: Desk, *, on_validation: bool = False) -> dict[str, float]:
    """The four criteria of a student that was trained, for the ledger; ``on_validation`` where its data ends
    at its validation images: its teacher's are taken, too."""
    assert cell.teacher is not None, "who keeps old classes has a teacher"
    dtype = run.settings.autocast_dtype(desk.device)
    new = evaluation.predict(run.student, run.images.test, autocast_dtype=dtype)
    return judge_jointly(
        run.student, new, run.images.size, cell.teacher, desk.places, desk.device, on_validation
    )


def judge_jointly(
    student: Network,
    new: Outputs,
    size: int,
    teacher: TeacherCell,
    places: Places,
    device: torch.device,
    on_validation: bool = False,
) -> dict[str, float]:
    """The four criteria, for the ledger.

    Args:
        student: of all classes.
        new: its outputs for the test images of new classes, labelled among all classes.
        size: side of the images.
        teacher: tells which the old classes are, and where their images.
        places: of the data.
        device: where to compute.
        on_validation: the teacher's validation images instead of its test images.
    """
    train_settings, data_settings, _ = sort_settings(get_method("student"), teacher.as_cell().arguments())
    splits = read_splits(places.data_spec(teacher.data), data_settings, train_settings.seed)
    held = splits.val if on_validation else splits.test
    with choose_holding(splits.name, [held], size, data_settings, device) as holding:
        images, labels, _ = holding.load(held, size, device)
    places_of = torch.tensor(columns_of(student.classes, splits.classes), device=device)
    dtype = train_settings.autocast_dtype(device)
    old = evaluation.predict(student, Batches(images, places_of[labels], 512), autocast_dtype=dtype)
    joint = evaluation.joint_accuracy(old.logits, old.labels, new.logits, new.labels)
    return {f"joint_{name}": getattr(joint, name) for name in CRITERIA}


def teacher_with_probe(
    teacher: Path, data: str, shared: Shared, device: torch.device, settings: dict[str, Any]
) -> tuple[Network, Outputs, int]:
    """The frozen teacher with its own head and a logistic regression for the new classes beside it, both at
    one level; its outputs for the new test images, and the images' side."""
    train_settings, data_settings, _ = sort_settings(get_method("student"), settings)
    splits = shared.splits(data, data_settings, train_settings.seed)
    frozen = shared.teacher(teacher, device)
    size = wanted_size(splits, data_settings, frozen)
    images = shared.images(splits, size, data_settings, train_settings, device, Reporter(), None)
    dtype = train_settings.autocast_dtype(device)
    known = evaluation.predict(frozen, images.train, autocast_dtype=dtype)
    probe = evaluation.fit_probe(known.embeddings, known.labels, len(splits.classes))
    network = copy.deepcopy(frozen)
    network.classes = all_classes(frozen, splits.classes)
    own = columns_of(network.classes, splits.classes)
    joined = nn.Linear(network.dim, len(network.classes)).to(device)
    with torch.no_grad():
        joined.weight[: len(frozen.classes)].copy_(frozen.head.get_parameter("weight"))
        joined.bias[: len(frozen.classes)].copy_(frozen.head.get_parameter("bias"))
        for label, column in enumerate(own):
            if column >= len(frozen.classes):
                joined.weight[column], joined.bias[column] = probe.weight[label], probe.bias[label]
    network.head = joined
    wanted, logits = train_settings.keep_level, network.classify(known.embeddings)
    if wanted is False or not level(network, frozen, splits.classes, logits, known.embeddings, known.labels):
        calibrate(network)
    judged = images.relabelled(own, network.classes)
    return network, evaluation.predict(network, judged.test, autocast_dtype=dtype), size


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
