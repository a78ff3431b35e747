"""ProtoNet: Snell, Swersky, Zemel: Prototypical Networks for Few-shot Learning, 2017
(https://arxiv.org/abs/1703.05175).

A query belongs to the class with the nearest mean of the support; the embedding is trained for that.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from refilled.checks import check_number
from refilled.data import Progress
from refilled.fewshot.classifiers import OnEmbeddings, prototypes, squared_distances
from refilled.fewshot.meta import EpisodeLoss, MetaTraining, meta_train
from refilled.fewshot.views import Pool, embed_pool
from refilled.models import Network


def prototype_loss(temperature: float = 1.0) -> EpisodeLoss:
    """Cross-entropy of the queries, with -(squared distance from a class's mean) / temperature as logits."""
    check_number("temperature", temperature, above=0)

    def loss(support: Tensor, queries: Tensor) -> Tensor:
        return distance_loss(support.mean(dim=1), queries, temperature)

    return loss


def distance_loss(means: Tensor, images: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of embeddings [ways, n, dim] by their squared distances from means [ways, dim]."""
    ways, count, _ = images.shape
    logits = -squared_distances(images.flatten(0, 1)[None], means[None])[0] / temperature
    labels = torch.arange(ways, device=means.device).repeat_interleave(count)
    return F.cross_entropy(logits, labels)


def train_protonet(
    network: Network,
    seen: Pool,
    settings: MetaTraining | None = None,
    *,
    temperature: float = 1.0,
    progress: Progress | None = None,
) -> None:
    """Train the network's embedding on tasks of the seen classes, in place."""
    meta_train(network, [], seen, prototype_loss(temperature), settings or MetaTraining(), progress)


def protonet_tasks(network: Network, pool: Pool) -> OnEmbeddings:
    """The method with a trained network."""
    return OnEmbeddings(embed_pool(network, pool), prototypes)
