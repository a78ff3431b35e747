"""Plain knowledge distillation: for teachers of the same classes only.

Hinton, Vinyals, Dean: Distilling the Knowledge in a Neural Network, 2015, which leaves temperature and
weights open. Ours (temperature 4, 0.9 beside 0.1 for the labels) are those with which the usual comparisons
on CIFAR-100 were made: Tian, Krishnan, Isola 2020 (HobbitLong/RepDistiller), and mdistiller after them.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from refilled import objectives
from refilled.checks import check_number
from refilled.data import Batch, Batches
from refilled.methods.logits import logits_stage
from refilled.methods.stage import Method, Stage
from refilled.models import Network


@dataclass(frozen=True)
class KDSettings:
    """Settings of plain distillation; the loss is (1 - weight) cross-entropy + weight KD."""

    tau: float = 4.0
    """Temperature of both models."""
    weight: float = 0.9
    """Share of the distillation term."""

    def __post_init__(self) -> None:
        check_number("tau", self.tau, above=0)
        check_number("weight", self.weight, least=0, most=1)


def stages(
    teacher: Network, student: Network, train: Batches, settings: KDSettings, epochs: int
) -> list[Stage]:
    """One stage: cross-entropy and the teacher's softened logits."""

    def terms(logits: Tensor, teacher_logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {
            "cross_entropy": (1 - settings.weight) * F.cross_entropy(logits.float(), batch.labels),
            "kd": settings.weight * objectives.kd(logits, teacher_logits, tau=settings.tau),
        }

    return logits_stage(teacher, student, train, terms, epochs)


METHOD = Method(
    "kd", "plain distillation of logits; same classes only", KDSettings, stages, same_classes=True
)
