"""Distillation of standardised logits: for teachers of the same classes only.

Sun, Ren, Li, Wang, Cao: Logit Standardization in Knowledge Distillation, 2024. Base temperature 2, weight 9
and the cross-entropy's weight of 0.1 are the defaults of the authors' code for CIFAR-100
(sunshangquan/logit-standardization-KD); for some pairs of networks their logs have other temperatures (3, 4)
and weights (1, 12).
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
class StandardisedKDSettings:
    """The loss is cross_entropy_weight cross-entropy + weight KD of the z-scores of the logits."""

    tau: float = 2.0
    """Base temperature of both models, of logits with standard deviation 1."""
    weight: float = 9.0
    """Weight of the distillation term."""
    cross_entropy_weight: float = 0.1
    """Weight of the cross-entropy."""

    def __post_init__(self) -> None:
        check_number("tau", self.tau, above=0)
        check_number("weight", self.weight, least=0)
        check_number("cross_entropy_weight", self.cross_entropy_weight, least=0)


def stages(
    teacher: Network, student: Network, train: Batches, settings: StandardisedKDSettings, epochs: int
) -> list[Stage]:
    """One stage: cross-entropy and the z-scores of the teacher's logits, softened."""

    def terms(logits: Tensor, teacher_logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {
            "cross_entropy": settings.cross_entropy_weight * F.cross_entropy(logits.float(), batch.labels),
            "kd": settings.weight * objectives.standardised_kd(logits, teacher_logits, tau=settings.tau),
        }

    return logits_stage(teacher, student, train, terms, epochs)


METHOD = Method(
    "kd-standardised",
    "distillation of standardised logits; same classes only",
    StandardisedKDSettings,
    stages,
    same_classes=True,
)
