"""Similarity-preserving knowledge distillation, for any classes.

Tung, Mori: Similarity-Preserving Knowledge Distillation, 2019: cross-entropy + gamma times Equation 4.
gamma = 3000 is that of Tian, Krishnan, Isola 2020 for CIFAR-100 (HobbitLong/RepDistiller, whose authors had
their re-implementation verified by the paper's first). The paper compares the last feature maps. So do we
where the embeddings of both networks are the means of their last maps, as they are in all networks of ours;
else we compare embeddings, and no network runs twice.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from refilled import objectives
from refilled.checks import check_number
from refilled.data import Batch, Batches
from refilled.methods.stage import Method, Stage
from refilled.models import Network


@dataclass(frozen=True)
class SPSettings:
    """The loss is cross-entropy + weight times the distance of the similarities."""

    weight: float = 3000.0
    """Weight of the similarities, the paper's gamma."""

    def __post_init__(self) -> None:
        check_number("weight", self.weight, least=0)


def averages_its_maps(network: Network) -> bool:
    """Whether the network's embedding is the mean of its last feature maps over their positions."""
    return type(network).embed_prepared is Network.embed_prepared


def stages(
    teacher: Network, student: Network, train: Batches, settings: SPSettings, epochs: int
) -> list[Stage]:
    """One stage: cross-entropy and the similarities between the images of a batch."""
    from_maps = averages_its_maps(teacher) and averages_its_maps(student)

    def activations(network: Network, images: Tensor) -> tuple[Tensor, Tensor]:
        """What is compared [B, n], and the embeddings [B, dim]."""
        if not from_maps:
            embeddings = network.embed(images)
            return embeddings, embeddings
        maps = network.features(images)[-1]
        return maps.flatten(1), maps.mean(dim=(2, 3))

    def loss(batch: Batch) -> dict[str, Tensor]:
        compared, embeddings = activations(student, batch.images)
        with torch.no_grad():
            wanted, _ = activations(teacher, batch.images)
        logits = student.classify(embeddings)
        return {
            "cross_entropy": F.cross_entropy(logits.float(), batch.labels),
            "similarity": settings.weight * objectives.similarity_preserving(compared, wanted),
        }

    return [Stage("classifier", epochs, list(student.parameters()), loss)]


METHOD = Method("sp", "cross-entropy and the similarities within a batch", SPSettings, stages)
