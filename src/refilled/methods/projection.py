"""A map from the student's embedding into the teacher's, for methods that need one space for both."""

from torch import Tensor, nn

from refilled.data import Batches
from refilled.methods.fresh import fresh
from refilled.models import Network


class Projection(nn.Module):
    """A linear map of the student's embeddings to the teacher's dimension; nothing where they agree.

    It is trained beside the student and left behind afterwards.

    Args:
        inputs: the student's dimension.
        outputs: the teacher's.
    """

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs) if inputs != outputs else None

    def forward(self, embeddings: Tensor) -> Tensor:
        """Embeddings [B, outputs] of embeddings [B, inputs]."""
        return embeddings if self.linear is None else self.linear(embeddings)


def projection(teacher: Network, student: Network, train: Batches) -> Projection:
    """A fresh one for these two, on the device of the training images."""
    return fresh(train, lambda: Projection(student.dim, teacher.dim))
