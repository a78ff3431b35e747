"""Imitation: the student's embedding, seen through a linear map of its own, points where the teacher's does.

This is no part of the ReFilled paper. It asks for more than comparisons do, and needs no classes at all: a
hint (Romero et al., FitNets, 2015) at the embedding, of which only the direction counts. Images of classes
that the teacher has learned may count more than others, of which it knows less. Images without labels, of
whatever there is, are imitated like others: few labelled images show little of what the teacher knows.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from refilled import objectives
from refilled.data import Batches
from refilled.errors import UserError
from refilled.methods.fresh import fresh
from refilled.methods.mixtures import Seen
from refilled.methods.stage import Method
from refilled.models import Network


class Imitation(nn.Module):
    """The linear map, which is trained beside the student and left behind, and the term.

    Args:
        inputs: the student's dimension.
        outputs: the teacher's.
        weights: of an image, by its class.
        unlabelled: weight of images without a label, as a group of their own.
    """

    by_class: Tensor

    def __init__(self, inputs: int, outputs: int, weights: Sequence[float], unlabelled: float = 0.0):
        super().__init__()
        self.unlabelled = unlabelled
        self.linear = nn.Linear(inputs, outputs)
        self.register_buffer("by_class", torch.tensor(weights), persistent=False)

    @property
    def recipe(self) -> dict[str, Any]:
        """All that decides what it does."""
        return {"by_class": self.by_class.tolist(), "unlabelled": self.unlabelled}

    def forward(self, student_z: Tensor, teacher_z: Tensor, seen: Seen) -> Tensor:
        """Scalar, for embeddings [S, inputs] and [S, outputs] of what is seen: the weighted mean over images
        with labels and mixtures, and beside it that over images without."""
        ours, our_others = seen.parts(self.linear(student_z))
        theirs, their_others = seen.parts(teacher_z)
        term = objectives.direction_matching(ours, theirs, seen.by_class(self.by_class))
        if not len(our_others):
            return term
        return term + self.unlabelled * objectives.direction_matching(our_others, their_others)


def imitation(
    teacher: Network,
    student: Network,
    train: Batches,
    weight: float,
    weight_new: float | None = None,
    unlabelled: float = 0.0,
) -> Imitation | None:
    """A fresh one for these two, on the device of the training images; None where all weights are 0.

    Args:
        teacher: its classes are known to it, all others are new.
        student: whose classes the labels are.
        train: the training images.
        weight: of images of known classes.
        weight_new: of images of new ones; None: the same.
        unlabelled: of images without labels.
    """
    known = {there for _, there in teacher.classes.overlap(student.classes).pairs}
    new = weight if weight_new is None else weight_new
    weights = [weight if label in known else new for label in range(len(student.classes))]
    if not any(weights) and not (train.unlabelled and unlabelled):
        return None
    return fresh(train, lambda: Imitation(student.dim, teacher.dim, weights, unlabelled))


def check_unlabelled(method: Method, settings: Any) -> None:
    """Refuse images without labels where nothing would be learned from them."""
    if not method.unlabelled:
        raise UserError(
            f"method {method.name} has no use for images without labels; use --method refilled or "
            f"refilled-few, or leave --unlabelled out"
        )
    if settings.imitation_unlabelled == 0 and settings.head_unlabelled == 0:
        raise UserError(
            "nothing would be learned from images without labels, as imitation_unlabelled is 0: raise it, or "
            "leave --unlabelled out"
        )
