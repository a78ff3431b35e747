"""The student alone: cross-entropy on its own labels. Every comparison needs it."""

from dataclasses import dataclass

from torch import Tensor

from refilled.data import Batch, Batches
from refilled.methods.mixtures import show
from refilled.methods.stage import Method, Stage
from refilled.models import Network


@dataclass(frozen=True)
class AloneSettings:
    """Settings of a student alone."""

    mixtures: bool = False
    """See as many mixtures as images: two images and their labels, blended in a share drawn anew (mixup)."""


def cross_entropy_stage(student: Network, epochs: int, mixtures: bool = False) -> Stage:
    """Train the whole student on its labels."""

    def loss(batch: Batch) -> dict[str, Tensor]:
        seen = show(batch, mixtures)
        _, logits = student(seen.images)
        return {"cross_entropy": seen.cross_entropy(logits)}

    return Stage("classifier", epochs, list(student.parameters()), loss)


def stages(
    teacher: Network, student: Network, train: Batches, settings: AloneSettings, epochs: int
) -> list[Stage]:
    """One stage, no teacher."""
    return [cross_entropy_stage(student, epochs, settings.mixtures)]


METHOD = Method(
    "student", "the student alone, with cross-entropy", AloneSettings, stages, needs_teacher=False, keeps=True
)
