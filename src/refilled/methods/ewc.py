"""EWC: the teacher goes on learning, and weights that matter for its classes are held where they are.

Kirkpatrick et al., Overcoming catastrophic forgetting in neural networks, 2017. The Fisher information wants
images of the old task, which are gone: it is estimated on new images, with labels drawn from the teacher's
own predictions, as its definition has it. The paper tunes its lambda for each experiment; 1000, and no
information beyond 0.0001, are those of a public re-implementation (PyCIL). Without that bound a few weights
would be held so stiffly that gradient descent overshoots. 512 images are ours.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from refilled import objectives
from refilled.checks import check_number
from refilled.data import Batch, Batches
from refilled.data.randomness import seeded_generator
from refilled.methods.alone import cross_entropy_stage
from refilled.methods.stage import Method, Stage
from refilled.methods.taking_over import check_same_architecture, take_over, whole
from refilled.models import Network

_OF_LABELS = 0x657763  # apart from the seeds of anything else


@dataclass(frozen=True)
class EWCSettings:
    """Settings of elastic weight consolidation."""

    ewc_strength: float = 1000.0
    """Lambda, the penalty's weight."""
    fisher_most: float = 1e-4
    """Bound on how much a weight can matter."""
    fisher_images: int = 512
    """Images on which it is estimated how much each weight matters."""

    def __post_init__(self) -> None:
        check_number("ewc_strength", self.ewc_strength, least=0)
        check_number("fisher_most", self.fisher_most, above=0)
        check_number("fisher_images", self.fisher_images, least=1)


def fisher_information(network: Network, train: Batches, images: int) -> list[Tensor]:
    """Mean square of the gradients of log p(y | x) for y drawn from the network's own predictions, for each
    parameter of the backbone: the diagonal of the Fisher information.

    Args:
        network: left as it is.
        train: images to ask about.
        images: how many of them, at most.
    """
    probe = copy.deepcopy(network).eval().requires_grad_(True)
    weights = probe.backbone_parameters()
    sums = [torch.zeros_like(weight, dtype=torch.float32) for weight in weights]
    rows = torch.arange(min(images, len(train.labels)), device=train.device)
    views = train.plan(0).views.flatten(0, 1)  # any view of an image will do
    generator = seeded_generator(_OF_LABELS, train.seed, device=train.device)
    for row, view in zip(rows.split(1), views.split(1)):  # each image's gradient squared, not their mean's
        batch = train.assemble(train.source.take(row), row, view)
        log_p = probe(batch.images)[1].float().log_softmax(dim=1)
        drawn = torch.multinomial(log_p.detach().exp(), 1, generator=generator)
        gradients = torch.autograd.grad(log_p.gather(1, drawn).sum(), weights)
        for total, gradient in zip(sums, gradients):
            total += gradient.detach().float().square()
    return [total / len(rows) for total in sums]


class Anchors(nn.Module):
    """Where the weights were, and how much each mattered: kept in checkpoints."""

    def __init__(self, old: Sequence[Tensor], fisher: Sequence[Tensor]):
        super().__init__()
        for number, (weight, information) in enumerate(zip(old, fisher)):
            self.register_buffer(f"old{number}", weight.detach().float().clone())
            self.register_buffer(f"fisher{number}", information)
        self.count = len(old)

    def pairs(self) -> tuple[list[Tensor], list[Tensor]]:
        """Old weights and their information."""
        numbers = range(self.count)
        return [getattr(self, f"old{n}") for n in numbers], [getattr(self, f"fisher{n}") for n in numbers]


def stages(
    teacher: Network, student: Network, train: Batches, settings: EWCSettings, epochs: int
) -> list[Stage]:
    """One stage: cross-entropy on the new classes, and the penalty on weights that move."""
    inner = whole(student)
    inner.normalise_by(teacher.preprocess.mean, teacher.preprocess.std)
    information = fisher_information(teacher, train, settings.fisher_images)
    bounded = [each.clamp(max=settings.fisher_most) for each in information]
    anchors = Anchors(teacher.backbone_parameters(), bounded).to(train.device)
    alone = cross_entropy_stage(student, epochs)

    def loss(batch: Batch) -> dict[str, Tensor]:
        old, fisher = anchors.pairs()
        held = objectives.weight_consolidation(inner.backbone_parameters(), old, fisher)
        return alone.loss(batch) | {"consolidation": settings.ewc_strength * held}

    return [replace(alone, loss=loss, beside=anchors, begin=partial(take_over, teacher, student))]


METHOD = Method(
    "ewc",
    "the teacher learns on, weights that mattered are held; same architecture only",
    EWCSettings,
    stages,
    fits=partial(check_same_architecture, "ewc"),
    takes_over=True,
    keeps=True,
)
