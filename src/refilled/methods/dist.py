"""Matching correlations of predictions: for teachers of the same classes only.

Huang, You, Wang, Qian, Xu: Knowledge Distillation from A Stronger Teacher, 2022 (DIST): cross-entropy +
beta inter-class + gamma intra-class relations. The defaults (weights 2, temperature 4) are those of the
authors' configuration for CIFAR-100 (dist_cifar.yaml in their training code); for ImageNet theirs are
weights 2 and temperature 1.
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
class DISTSettings:
    """The loss is cross-entropy + beta inter-class + gamma intra-class relations."""

    tau: float = 4.0
    """Temperature of both models."""
    beta: float = 2.0
    """Weight of the relations between the classes of an image."""
    gamma: float = 2.0
    """Weight of the relations between the images of a class."""

    def __post_init__(self) -> None:
        check_number("tau", self.tau, above=0)
        check_number("beta", self.beta, least=0)
        check_number("gamma", self.gamma, least=0)


def stages(
    teacher: Network, student: Network, train: Batches, settings: DISTSettings, epochs: int
) -> list[Stage]:
    """One stage: cross-entropy and the correlations."""

    def terms(logits: Tensor, teacher_logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {
            "cross_entropy": F.cross_entropy(logits.float(), batch.labels),
            "dist": objectives.dist(
                logits, teacher_logits, tau=settings.tau, beta=settings.beta, gamma=settings.gamma
            ),
        }

    return logits_stage(teacher, student, train, terms, epochs)


METHOD = Method(
    "dist",
    "correlations of predictions; same classes only",
    DISTSettings,
    stages,
    same_classes=True,
)
