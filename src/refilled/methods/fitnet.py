"""FitNets: a middle map of the teacher is the hint for a middle map of the student; for any classes.

Romero, Ballas, Kahou, Chassang, Gatta, Bengio: FitNets: Hints for Thin Deep Nets, 2015. Two stages, as there:
the student up to its middle map learns, through a 1x1 convolution beside it, to predict the teacher's
(Equation 3); then the whole student learns its task. Where the teacher knows the same classes that is the
paper's distillation of logits (Equation 2, temperature 3, with a weight that falls from 4 to 1, both as in
the authors' code); where it does not, cross-entropy alone.

Public re-implementations have one stage, cross-entropy + 100 times the hint, and no logits. ReFilled's paper
follows FitNets in having two, and does not say what its own FitNet is; three of its four numbers for wide
ResNets are below the student alone, which looks like hints without logits: ``kd_weight=0`` here.

The hint is a mean over the map, not a sum, so its weight of 1 suits any size of maps. Its share of the epochs
is ours: the paper's first stage ends when validation says so.
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from refilled import objectives
from refilled.checks import check_number
from refilled.data import Batch, Batches
from refilled.methods.alone import cross_entropy_stage
from refilled.methods.feature_pairs import black_image, channels, maps_for, paired
from refilled.methods.fresh import fresh
from refilled.methods.same_classes import class_order, has_same_classes
from refilled.methods.stage import Method, Stage, embed, share
from refilled.models import Network


@dataclass(frozen=True)
class FitNetSettings:
    """Hints first; then cross-entropy + kd_weight times the softened cross-entropy to the teacher."""

    weight: float = 1.0
    """Weight of the hint, which is all there is in its stage."""
    hint_share: float = 0.2
    """Share of the epochs that goes to the hint."""
    tau: float = 3.0
    """Temperature of both models, for a teacher of the same classes."""
    kd_weight: float = 4.0
    """Weight of its logits at first; it falls linearly to a quarter. 0: cross-entropy alone."""

    def __post_init__(self) -> None:
        check_number("weight", self.weight, above=0)
        check_number("hint_share", self.hint_share, above=0, below=1)
        check_number("tau", self.tau, above=0)
        check_number("kd_weight", self.kd_weight, least=0)


def middle(maps: int) -> int:
    """Which of so many maps is the hint, counted from the last one, which is -1."""
    return (maps - 1) // 2 - maps


def guided_parameters(student: Network, number: int) -> list[nn.Parameter]:
    """Those that the student's map of that number depends on."""
    trial = copy.deepcopy(student).eval().requires_grad_()
    maps = trial.features(black_image(student))[number]
    gradients = torch.autograd.grad(maps.sum(), list(trial.parameters()), allow_unused=True)
    return [ours for ours, gradient in zip(student.parameters(), gradients) if gradient is not None]


def hint_stage(
    teacher: Network, student: Network, train: Batches, settings: FitNetSettings, epochs: int
) -> Stage:
    """Stage 1: the student up to its middle map, and the regressor."""
    widths = paired(channels(student), channels(teacher))
    number = middle(len(widths))
    regressor = fresh(train, lambda: nn.Conv2d(*widths[number], 1))

    def loss(batch: Batch) -> dict[str, Tensor]:
        ours = student.features(batch.images)[number]
        with torch.no_grad():
            theirs = teacher.features(batch.images)[number]
        ours, theirs = objectives.same_size(ours, theirs)
        return {"hint": settings.weight * objectives.hint(regressor(ours), theirs)}

    trained = [*guided_parameters(student, number), *regressor.parameters()]
    return Stage("hint", epochs, trained, loss, judge="embedding", beside=regressor)


def logits_stage(
    teacher: Network, student: Network, train: Batches, settings: FitNetSettings, epochs: int
) -> Stage:
    """Stage 2: the labels and the teacher's softened logits."""
    order = class_order(teacher, student, train.device)

    def loss(batch: Batch) -> dict[str, Tensor]:
        _, logits = student(batch.images)
        with torch.no_grad():
            teacher_logits = teacher.classify(embed(teacher, batch))[:, order]
        behind = 0.0 if batch.progress is None else batch.progress
        weight = settings.kd_weight * (1 - 0.75 * behind)
        # Equation 2 has no factor of tau squared, unlike the objective.
        softened = objectives.kd(logits, teacher_logits, tau=settings.tau) / settings.tau**2
        return {
            "cross_entropy": F.cross_entropy(logits.float(), batch.labels),
            "kd": weight * softened,
        }

    return Stage("classifier", epochs, list(student.parameters()), loss, asks=teacher)


def stages(
    teacher: Network, student: Network, train: Batches, settings: FitNetSettings, epochs: int
) -> list[Stage]:
    """The hint, then the task."""
    first, second = share(epochs, settings.hint_share)
    hints = hint_stage(teacher, student, train, settings, first)
    if settings.kd_weight > 0 and has_same_classes(teacher, student):
        return [hints, logits_stage(teacher, student, train, settings, second)]
    return [hints, cross_entropy_stage(student, second)]


METHOD = Method(
    "fitnet", "hints for a middle map, then the labels", FitNetSettings, stages, fits=maps_for("fitnet")
)
