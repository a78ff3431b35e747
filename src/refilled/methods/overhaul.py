"""The overhauled distillation of feature maps, for any classes.

Heo, Kim, Yun, Park, Kwak, Choi: A Comprehensive Overhaul of Feature Distillation, 2019: cross-entropy +
weight times the partial distance between the student's maps, through a normalised 1x1 convolution, and the
teacher's margin ReLU, both before the activation that ends each stage. As in the authors' code, the weight
is 1/1000 for a sum over a map, and halves from a stage to the one before it.

The margin of a channel is the mean of the teacher's negative responses to the training images. The paper
also gets it from the batch normalisation before the activation, which would have to be found in each
network, and is not all there is before it where a shortcut is added.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from refilled import objectives
from refilled.checks import check_number
from refilled.data import Batches
from refilled.methods.feature_pairs import (
    Pairs,
    before_activation,
    channels,
    features_stage,
    look_at_nothing,
    maps_for,
    paired,
)
from refilled.methods.fresh import fresh
from refilled.methods.stage import Method, Stage
from refilled.models import Network
from refilled.models.layers import initialise

_IMAGES_AT_ONCE = 64


@dataclass(frozen=True)
class OverhaulSettings:
    """The loss is cross-entropy + weight times the distance of the maps, which counts half as much in the
    stage before the last, a quarter in the one before that, and so on."""

    weight: float = 0.001
    """Weight of the last maps' distance."""

    def __post_init__(self) -> None:
        check_number("weight", self.weight, least=0)


def connector(inputs: int, outputs: int) -> nn.Sequential:
    """From the student's channels to the teacher's."""
    layers = nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
    initialise(layers)
    return layers


@torch.no_grad()
def margins(teacher: Network, student: Network, train: Batches) -> list[Tensor]:
    """Mean of the teacher's negative responses to the images as they are [C], for each pair of maps; 0 for a
    channel that has none."""
    side = train.source.shape[3]
    sizes = [maps.shape[2:] for maps in look_at_nothing(student, before_activation, side)]
    sums: list[Tensor] = []
    for batch in train.ordered(_IMAGES_AT_ONCE):
        wanted, _ = before_activation(teacher, batch.images)
        both = paired(sizes, wanted)
        compared = [objectives.averaged_down(theirs, size) for size, theirs in both]
        found = [objectives.negative_sums(maps) for maps in compared]
        sums = [total + more for total, more in zip(sums, found)] if sums else found
    return [(total / count.clamp(min=1)).float() for total, count in sums]


def stages(
    teacher: Network, student: Network, train: Batches, settings: OverhaulSettings, epochs: int
) -> list[Stage]:
    """One stage: cross-entropy and the partial distances."""
    widths = paired(channels(student, before_activation), channels(teacher, before_activation))
    connectors = fresh(train, lambda: nn.ModuleList(connector(*both) for both in widths))
    floors = margins(teacher, student, train)
    weights = [settings.weight / 2**earlier for earlier in reversed(range(len(widths)))]

    def term(pairs: Pairs) -> Tensor:
        distances = []
        for weight, connect, floor, pair in zip(weights, connectors, floors, pairs):
            ours, theirs = objectives.same_size(*pair)
            distances.append(weight * objectives.partial_distance(connect(ours), theirs, floor))
        return torch.stack(distances).sum()

    return features_stage(teacher, student, "overhaul", term, epochs, connectors, before_activation)


METHOD = Method(
    "overhaul",
    "cross-entropy and the maps before their activation",
    OverhaulSettings,
    stages,
    fits=maps_for("overhaul", before_activation),
)
