"""Decoupled knowledge distillation: for teachers of the same classes only.

Zhao, Cui, Song, Qiu, Liang: Decoupled Knowledge Distillation, 2022, Equation 7, beside the cross-entropy.
The defaults are those of the authors' code for CIFAR-100 (megvii-research/mdistiller): temperature 4, alpha
1, beta 8 (they choose it for each pair of networks; 6 from WRN-40-2 to WRN-16-2), and a warm-up in which the
term's weight grows linearly over the first 20 of 240 epochs. There it grows epoch by epoch, here step by
step.
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
class DKDSettings:
    """The loss is cross-entropy + alpha TCKD + beta NCKD."""

    tau: float = 4.0
    """Temperature of both models."""
    alpha: float = 1.0
    """Weight of the target class: how sure the teacher is."""
    beta: float = 8.0
    """Weight of the other classes: what the teacher would say otherwise."""
    warm_up: float = 20 / 240
    """Share of the stage in which the weight of both grows from 0; 0: it is there from the start."""

    def __post_init__(self) -> None:
        check_number("tau", self.tau, above=0)
        check_number("alpha", self.alpha, least=0)
        check_number("beta", self.beta, least=0)
        check_number("warm_up", self.warm_up, least=0, most=1)

    def warmth(self, batch: Batch) -> Tensor | float:
        """Share of the full weight at this point of the training; all of it outside of training."""
        if batch.progress is None or self.warm_up == 0:
            return 1.0
        return (batch.progress / self.warm_up).clamp(max=1)


def stages(
    teacher: Network, student: Network, train: Batches, settings: DKDSettings, epochs: int
) -> list[Stage]:
    """One stage: cross-entropy and the two parts of the distillation."""

    def terms(logits: Tensor, teacher_logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {
            "cross_entropy": F.cross_entropy(logits.float(), batch.labels),
            "dkd": settings.warmth(batch)
            * objectives.dkd(
                logits, teacher_logits, batch.labels,
                tau=settings.tau, alpha=settings.alpha, beta=settings.beta,
            ),
        }  # fmt: skip

    return logits_stage(teacher, student, train, terms, epochs)


METHOD = Method(
    "dkd",
    "decoupled distillation of logits; same classes only",
    DKDSettings,
    stages,
    same_classes=True,
)
