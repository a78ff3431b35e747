"""Attention transfer, for any classes: the student looks where the teacher looks.

Zagoruyko, Komodakis: Paying More Attention to Attention, 2017: cross-entropy + beta times Equation 2 for
the maps after each stage, with p = 2. beta = 1000 and the squared mean, instead of half a norm, are those
of the authors' code and of public re-implementations. Theirs are the maps of a wide ResNet's last group
before normalisation and ReLU, ours those after it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from refilled.checks import check_number
from refilled.data import Batch, Batches
from refilled.methods.feature_pairs import look_at_nothing, maps_for, paired
from refilled.methods.stage import Method, Stage, ask
from refilled.models import Network
from refilled.objectives.attention import looks, looks_gap

fx.wrap("looks")  # a step of its own where a network is traced: it looks at types and sizes


@dataclass(frozen=True)
class ATSettings:
    """The loss is cross-entropy + weight times the gap of the attentions, summed over the stages."""

    weight: float = 1000.0
    """Weight of the attentions, the paper's beta."""

    def __post_init__(self) -> None:
        check_number("weight", self.weight, least=0)


@dataclass(frozen=True)
class Attentions:
    """Where a network looks in its last stages, as one vector for each image.

    Args:
        sizes: height and width of the attention of each stage.
    """

    sizes: tuple[tuple[int, int], ...]

    def __call__(self, network: Network, prepared: Tensor) -> Tensor:
        """Attentions [B, width] of prepared images, each of length 1, one stage after the other."""
        maps = network.feature_maps(prepared)[-len(self.sizes) :]
        return torch.cat([looks(own, size) for own, size in zip(maps, self.sizes)], dim=1)

    def width(self, network: Network) -> int:
        """Positions of all stages."""
        return sum(self.positions)

    @property
    def positions(self) -> list[int]:
        """Of each stage."""
        return [height * width for height, width in self.sizes]


def common_sizes(teacher: Network, student: Network, train: Batches) -> tuple[tuple[int, int], ...]:
    """Height and width, for each pair of stages, of the smaller maps."""
    side = train.source.shape[-1]
    with torch.no_grad():
        pairs = paired(look_at_nothing(student, side=side), look_at_nothing(teacher, side=side))
    return tuple(
        (min(ours.shape[2], theirs.shape[2]), min(ours.shape[3], theirs.shape[3])) for ours, theirs in pairs
    )


def stages(
    teacher: Network, student: Network, train: Batches, settings: ATSettings, epochs: int
) -> list[Stage]:
    """One stage: cross-entropy and the attentions."""
    wanted = Attentions(common_sizes(teacher, student, train))

    def loss(batch: Batch) -> dict[str, Tensor]:
        maps, embeddings = student.features_and_embedding(batch.images)
        theirs = ask(teacher, batch, wanted).split(wanted.positions, dim=1)
        ours = maps[-len(wanted.sizes) :]
        gaps = [looks_gap(looks(own, size), their) for own, size, their in zip(ours, wanted.sizes, theirs)]
        return {
            "cross_entropy": F.cross_entropy(student.classify(embeddings).float(), batch.labels),
            "attention": settings.weight * torch.stack(gaps).sum(),
        }

    return [Stage("classifier", epochs, list(student.parameters()), loss, asks=teacher, wanted=wanted)]


METHOD = Method("at", "cross-entropy and where the teacher looks", ATSettings, stages, fits=maps_for("at"))
