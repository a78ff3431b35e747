"""Attention transfer, for any classes: the student looks where the teacher looks.

Zagoruyko, Komodakis: Paying More Attention to Attention, 2017: cross-entropy + beta times Equation 2 for
the maps after each stage, with p = 2. beta = 1000 and the squared mean, instead of half a norm, are those
of the authors' code and of public re-implementations. Theirs are the maps of a wide ResNet's last group
before normalisation and ReLU, ours those after it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from refilled import objectives
from refilled.checks import check_number
from refilled.data import Batches
from refilled.methods.feature_pairs import Pairs, features_stage, maps_for
from refilled.methods.stage import Method, Stage
from refilled.models import Network


@dataclass(frozen=True)
class ATSettings:
    """The loss is cross-entropy + weight times the gap of the attentions, summed over the stages."""

    weight: float = 1000.0
    """Weight of the attentions, the paper's beta."""

    def __post_init__(self) -> None:
        check_number("weight", self.weight, least=0)


def stages(
    teacher: Network, student: Network, train: Batches, settings: ATSettings, epochs: int
) -> list[Stage]:
    """One stage: cross-entropy and the attentions."""

    def term(pairs: Pairs) -> Tensor:
        gaps = [objectives.attention_transfer(ours, theirs) for ours, theirs in pairs]
        return settings.weight * torch.stack(gaps).sum()

    return features_stage(teacher, student, "attention", term, epochs)


METHOD = Method("at", "cross-entropy and where the teacher looks", ATSettings, stages, check=maps_for("at"))
