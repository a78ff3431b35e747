"""The student alone: cross-entropy on its own labels. Every comparison needs it."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from refilled.data import Batch, Batches
from refilled.methods.stage import Method, Stage
from refilled.models import Network


@dataclass(frozen=True)
class AloneSettings:
    """A student alone has no settings of its own."""


def cross_entropy_stage(student: Network, epochs: int) -> Stage:
    """Train the whole student on its labels."""

    def loss(batch: Batch) -> dict[str, Tensor]:
        _, logits = student(batch.images)
        return {"cross_entropy": F.cross_entropy(logits.float(), batch.labels)}

    return Stage("classifier", epochs, list(student.parameters()), loss)


def stages(
    teacher: Network, student: Network, train: Batches, settings: AloneSettings, epochs: int
) -> list[Stage]:
    """One stage, no teacher."""
    return [cross_entropy_stage(student, epochs)]


METHOD = Method(
    "student", "the student alone, with cross-entropy", AloneSettings, stages, needs_teacher=False, keeps=True
)
