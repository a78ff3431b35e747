"""How far each training image of a student trusts a teacher that knows some of its classes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from refilled import evaluation
from refilled.methods.refilled_settings import ClassifierSettings, Weight
from refilled.methods.refilled_terms import ClassifierTerm
from refilled.runs.prepare import Prepared, make_teacher
from refilled.suite.figures.figure import Studio
from refilled.suite.figures.images import images_of
from refilled.suite.tables.cifar100 import gkd
from refilled.suite.tables.rows import TWO_STAGES

OVERLAP = 60
WEIGHTS: tuple[Weight, ...] = ("pl", "head")


@dataclass(frozen=True)
class Trust:
    """Weights of N training images."""

    weights: dict[str, Tensor]
    """λ_i / λ from 0 to 1, float [N], by the kind of weight."""
    seen: Tensor
    """Whether the teacher knows the image's class: bool [N]."""
    images: Prepared


def trust(studio: Studio) -> Trust:
    """The weights of ReFilled's second stage, for CIFAR-100 with 60 % of the classes shared.

    All images are one batch here: every class is in it, and the head weight is scaled over all of them.
    """
    cell = studio.cell(gkd({}, TWO_STAGES, "wrn-16-2", OVERLAP))
    folder = studio.teacher(cell)
    assert folder is not None, "this cell has a teacher"
    teacher = make_teacher(folder, studio.torch_device)
    images = images_of(studio, cell, teacher)
    classes, labels = images.classes, images.train.labels
    embeddings = evaluation.predict(teacher, images.train).embeddings
    weights: dict[str, Tensor] = {}
    for kind in WEIGHTS:
        term = ClassifierTerm(teacher, images.train, len(classes), ClassifierSettings(weight=kind))
        with torch.no_grad():
            scores = term.scores(embeddings)
            found = term.weights(scores, embeddings, scores, labels)  # neither kind looks at the student
        assert found is not None
        weights[kind] = found.cpu()
    known = torch.tensor([name in teacher.classes for name in classes])
    return Trust(weights, known[labels.cpu()], images)
