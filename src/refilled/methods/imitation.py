"""Imitation: the student's embedding, seen through a linear map of its own, points where the teacher's does.

This is no part of the ReFilled paper. It asks for more than comparisons do, and needs no classes at all: a
hint (Romero et al., FitNets, 2015) at the embedding, of which only the direction counts. Images of classes
that the teacher has learned may count more than others, of which it knows less.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from refilled import objectives
from refilled.data import Batches
from refilled.methods.fresh import fresh
from refilled.methods.mixtures import Seen
from refilled.models import Network


class Imitation(nn.Module):
    """The linear map, which is trained beside the student and left behind, and the term.

    Args:
        inputs: the student's dimension.
        outputs: the teacher's.
        weights: of an image, by its class.
    """

    by_class: Tensor

    def __init__(self, inputs: int, outputs: int, weights: Sequence[float]):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.register_buffer("by_class", torch.tensor(weights), persistent=False)

    def forward(self, student_z: Tensor, teacher_z: Tensor, seen: Seen) -> Tensor:
        """Scalar, the mean over what is seen, for its embeddings [B or 2B, inputs] and [B or 2B, outputs]."""
        return objectives.direction_matching(self.linear(student_z), teacher_z, seen.by_class(self.by_class))


def imitation(
    teacher: Network, student: Network, train: Batches, weight: float, weight_new: float | None = None
) -> Imitation | None:
    """A fresh one for these two, on the device of the training images; None where all weights are 0.

    Args:
        teacher: its classes are known to it, all others are new.
        student: whose classes the labels are.
        train: the training images.
        weight: of images of known classes.
        weight_new: of images of new ones; None: the same.
    """
    known = {there for _, there in teacher.classes.overlap(student.classes).pairs}
    new = weight if weight_new is None else weight_new
    weights = [weight if label in known else new for label in range(len(student.classes))]
    return fresh(train, lambda: Imitation(student.dim, teacher.dim, weights)) if any(weights) else None
