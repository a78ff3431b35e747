"""Neuron selectivity transfer, for any classes: the student's channels respond where the teacher's do.

Huang, Wang: Like What You Like: Knowledge Distill via Neuron Selectivity Transfer, 2017: cross-entropy +
weight times the squared maximum mean discrepancy with the polynomial kernel. As in the authors' code, the
weight is 50 and only the last maps are compared; public re-implementations compare those of all stages.
"""

from dataclasses import dataclass

from torch import Tensor

from refilled import objectives
from refilled.checks import check_number
from refilled.data import Batches
from refilled.methods.feature_pairs import Pairs, features_stage, maps_for
from refilled.methods.stage import Method, Stage
from refilled.models import Network


@dataclass(frozen=True)
class NSTSettings:
    """The loss is cross-entropy + weight times the discrepancy of the channels."""

    weight: float = 50.0
    """Weight of the discrepancy."""

    def __post_init__(self) -> None:
        check_number("weight", self.weight, least=0)


def stages(
    teacher: Network, student: Network, train: Batches, settings: NSTSettings, epochs: int
) -> list[Stage]:
    """One stage: cross-entropy and the distribution of the last maps' channels."""

    def term(pairs: Pairs) -> Tensor:
        return settings.weight * objectives.neuron_selectivity(*pairs[-1])

    return features_stage(teacher, student, "selectivity", term, epochs)


METHOD = Method(
    "nst", "cross-entropy and where the teacher's neurons respond", NSTSettings, stages, fits=maps_for("nst")
)
