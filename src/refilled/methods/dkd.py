"""Decoupled knowledge distillation: for teachers of the same classes only.

Zhao, Cui, Song, Qiu, Liang: Decoupled Knowledge Distillation, 2022, Equation 7, beside the cross-entropy.
The defaults (temperature 4, alpha 1, beta 8) are those of public re-implementations for CIFAR-100; the
authors choose beta for each pair of networks. Their warm-up, in which the term's weight grows linearly
over the first 20 epochs, is left out: a loss here sees batches, not epochs.
"""

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
class DKDSettings:
    """The loss is cross-entropy + alpha TCKD + beta NCKD."""

    tau: float = 4.0
    """Temperature of both models."""
    alpha: float = 1.0
    """Weight of the target class: how sure the teacher is."""
    beta: float = 8.0
    """Weight of the other classes: what the teacher would say otherwise."""

    def __post_init__(self) -> None:
        check_number("tau", self.tau, above=0)
        check_number("alpha", self.alpha, least=0)
        check_number("beta", self.beta, least=0)


def stages(
    teacher: Network, student: Network, train: Batches, settings: DKDSettings, epochs: int
) -> list[Stage]:
    """One stage: cross-entropy and the two parts of the distillation."""

    def terms(logits: Tensor, teacher_logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {
            "cross_entropy": F.cross_entropy(logits.float(), labels),
            "dkd": objectives.dkd(
                logits, teacher_logits, labels, tau=settings.tau, alpha=settings.alpha, beta=settings.beta
            ),
        }

    return logits_stage(teacher, student, train, terms, epochs)


METHOD = Method(
    "dkd",
    "decoupled distillation of logits; same classes only",
    DKDSettings,
    stages,
    check=same_classes_for("dkd"),
)
