"""Variational information distillation, for any classes, and its sum with plain distillation.

Ahn, Hu, Damianou, Lawrence, Dai: Variational Information Distillation for Knowledge Transfer, 2019, over the
maps after each stage (VID-I in the tables of ReFilled's paper). The mean of the Gaussian is a regressor of
three 1x1 convolutions on the student's maps, as wide as the teacher's; its variance is a softplus for each
channel. That it starts at 5, and the weight of 1 for a mean over all values, are those of public
re-implementations, which have them from the authors' code.

kd-vid is plain distillation with its own defaults, and the same term beside it.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from refilled import objectives
from refilled.checks import check_number
from refilled.data import Batch, Batches
from refilled.methods.feature_pairs import (
    Pairs,
    after_activation,
    channels,
    features_stage,
    maps_for,
    paired,
)
from refilled.methods.fresh import fresh
from refilled.methods.kd import KDSettings
from refilled.methods.same_classes import class_order
from refilled.methods.stage import Method, Stage
from refilled.models import Network

_LEAST_VARIANCE = 1e-5
_FIRST_VARIANCE = 5.0


@dataclass(frozen=True)
class VIDSettings:
    """The loss is cross-entropy + weight times the information, summed over the stages."""

    weight: float = 1.0
    """Weight of the information."""

    def __post_init__(self) -> None:
        check_number("weight", self.weight, least=0)


@dataclass(frozen=True)
class KDVIDSettings(KDSettings):
    """The loss of plain distillation + vid_weight times the information."""

    vid_weight: float = 1.0
    """Weight of the information."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("vid_weight", self.vid_weight, least=0)


class Gaussian(nn.Module):
    """The teacher's maps as a Gaussian around what the student's maps predict.

    Args:
        inputs: channels of the student's maps.
        outputs: channels of the teacher's maps.
    """

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.mean = nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, bias=False),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 1, bias=False),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 1, bias=False),
        )
        start = math.log(math.expm1(_FIRST_VARIANCE - _LEAST_VARIANCE))  # the inverse of softplus
        self.unbounded_variance = nn.Parameter(torch.full((outputs,), start))

    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        """The objective for a pair of maps, of any sizes."""
        student, teacher = objectives.same_size(student, teacher)
        variance = F.softplus(self.unbounded_variance) + _LEAST_VARIANCE
        return objectives.variational_information(self.mean(student), variance, teacher)


def gaussians(teacher: Network, student: Network, train: Batches) -> nn.ModuleList:
    """One for each pair of maps."""
    widths = paired(channels(student), channels(teacher))
    return fresh(train, lambda: nn.ModuleList(Gaussian(*both) for both in widths))


def information(beside: nn.ModuleList, pairs: Pairs) -> Tensor:
    """The sum over all pairs of maps."""
    terms = [gaussian(ours, theirs) for gaussian, (ours, theirs) in zip(beside, pairs)]
    return torch.stack(terms).sum()


def stages(
    teacher: Network, student: Network, train: Batches, settings: VIDSettings, epochs: int
) -> list[Stage]:
    """One stage: cross-entropy and the information of the maps."""
    beside = gaussians(teacher, student, train)
    return features_stage(
        teacher,
        student,
        "information",
        lambda pairs: settings.weight * information(beside, pairs),
        epochs,
        beside,
    )


def kd_stages(
    teacher: Network, student: Network, train: Batches, settings: KDVIDSettings, epochs: int
) -> list[Stage]:
    """One stage: cross-entropy, the teacher's softened logits, and the information of the maps."""
    beside = gaussians(teacher, student, train)
    order = class_order(teacher, student, train.device)

    def loss(batch: Batch) -> dict[str, Tensor]:
        maps, embeddings = after_activation(student, batch.images)
        with torch.no_grad():
            wanted, teacher_embeddings = after_activation(teacher, batch.images)
            teacher_logits = teacher.classify(teacher_embeddings)[:, order]
        logits = student.classify(embeddings)
        return {
            "cross_entropy": (1 - settings.weight) * F.cross_entropy(logits.float(), batch.labels),
            "kd": settings.weight * objectives.kd(logits, teacher_logits, tau=settings.tau),
            "information": settings.vid_weight * information(beside, paired(maps, wanted)),
        }

    return [Stage("classifier", epochs, [*student.parameters(), *beside.parameters()], loss, beside=beside)]


METHODS = (
    Method("vid", "cross-entropy and information about the maps", VIDSettings, stages, fits=maps_for("vid")),
    Method(
        "kd-vid",
        "kd and vid together; same classes only",
        KDVIDSettings,
        kd_stages,
        same_classes=True,
        fits=maps_for("kd-vid"),
    ),
)
