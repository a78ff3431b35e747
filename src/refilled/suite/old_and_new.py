"""How students of old and new classes are judged, of whose old classes no image was seen."""

import copy
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
from refilled.suite.cell import Cell, TeacherCell
from refilled.suite.places import Places
from refilled.suite.runner import Desk
from refilled.training import Reporter

CRITERIA = ("old", "new", "all", "harmonic")
"""Accuracies over all classes, and the harmonic mean of the first two."""


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
