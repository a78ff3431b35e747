"""Plain knowledge distillation (Hinton, Vinyals, Dean 2015): for teachers of the same classes only."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from refilled import objectives
from refilled.checks import check_number
from refilled.data import Batches
from refilled.methods.same_classes import logits_stage, same_classes_for
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

    def terms(logits: Tensor, teacher_logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {
            "cross_entropy": (1 - settings.weight) * F.cross_entropy(logits.float(), labels),
            "kd": settings.weight * objectives.kd(logits, teacher_logits, tau=settings.tau),
        }

    return logits_stage(teacher, student, train, terms, epochs)


METHOD = Method(
    "kd", "plain distillation of logits; same classes only", KDSettings, stages, check=same_classes_for("kd")
)
