"""Imitation: the student's embedding, seen through a linear map of its own, points where the teacher's does.

This is no part of the ReFilled paper. It asks for more than comparisons do, and needs no classes at all: a
hint (Romero et al., FitNets, 2015) at the embedding, of which only the direction counts.
"""

from torch import Tensor, nn

from refilled import objectives
from refilled.data import Batches
from refilled.methods.fresh import fresh
from refilled.models import Network


class Imitation(nn.Module):
    """The linear map, which is trained beside the student and left behind, and the term.

    Args:
        inputs: the student's dimension.
        outputs: the teacher's.
        weight: of the term.
    """

    def __init__(self, inputs: int, outputs: int, weight: float):
        super().__init__()
        self.linear, self.weight = nn.Linear(inputs, outputs), weight

    def forward(self, student_z: Tensor, teacher_z: Tensor) -> Tensor:
        """Scalar for embeddings [B, inputs] and [B, outputs]."""
        return self.weight * objectives.direction_matching(self.linear(student_z), teacher_z)


def imitation(teacher: Network, student: Network, train: Batches, weight: float) -> Imitation | None:
    """A fresh one for these two, on the device of the training images; None without a weight."""
    return fresh(train, lambda: Imitation(student.dim, teacher.dim, weight)) if weight else None
