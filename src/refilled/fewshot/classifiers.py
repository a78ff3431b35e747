"""Classifiers on frozen embeddings without training, for many tasks at once.

All take support [T, ways * shots, d] (class by class), its labels int64 [ways * shots] and queries [T, M, d],
and predict classes int64 [T, M].
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from refilled.fewshot.episodes import Tasks

TaskClassifier = Callable[[Tensor, Tensor, Tensor], Tensor]


class OnEmbeddings:
    """A classifier on embeddings that were computed once.

    Args:
        embeddings: [N, d] of the pool's images.
        classifier: of this file, of :mod:`refilled.fewshot.linear`, or any other.
    """

    def __init__(self, embeddings: Tensor, classifier: TaskClassifier):
        self.embeddings, self.classifier = embeddings, classifier

    def __call__(self, tasks: Tasks) -> Tensor:
        """Predicted classes int64 [T, ways * queries]."""
        support, queries = self.embeddings[tasks.support], self.embeddings[tasks.queries]
        return self.classifier(support, tasks.support_labels, queries)


def centres(support: Tensor, labels: Tensor) -> Tensor:
    """Means of the classes [T, ways, d], where every class has as many images and they stand together."""
    ways = int(labels[-1]) + 1
    return support.unflatten(1, (ways, -1)).mean(dim=2)


def nearest_neighbour(support: Tensor, labels: Tensor, queries: Tensor) -> Tensor:
    """1NN among l2-normalised embeddings."""
    similarity = F.normalize(queries, dim=2) @ F.normalize(support, dim=2).mT
    return labels[similarity.argmax(dim=2)]


def nearest_class_mean(support: Tensor, labels: Tensor, queries: Tensor) -> Tensor:
    """The nearest mean of l2-normalised embeddings."""
    means = centres(F.normalize(support, dim=2), labels)
    return nearest(means, F.normalize(queries, dim=2))


def prototypes(support: Tensor, labels: Tensor, queries: Tensor) -> Tensor:
    """The nearest mean of the embeddings as they are (Snell et al., 2017)."""
    return nearest(centres(support, labels), queries)


def simple_shot(base_mean: Tensor) -> TaskClassifier:
    """SimpleShot, the variant CL2N: embeddings are centred by the mean of the base classes and
    l2-normalised, then the nearest class mean (Wang et al., 2019, https://arxiv.org/abs/1911.04623).

    Args:
        base_mean: [d], mean embedding of the images that the network was trained on.
    """

    def classify(support: Tensor, labels: Tensor, queries: Tensor) -> Tensor:
        return nearest_class_mean(support - base_mean, labels, queries - base_mean)

    return classify


def squared_distances(queries: Tensor, means: Tensor) -> Tensor:
    """Squared Euclidean distances [T, M, ways] of queries [T, M, d] from means [T, ways, d]."""
    lengths = queries.square().sum(dim=2, keepdim=True) + means.square().sum(dim=2)[:, None]
    return lengths - 2 * queries @ means.mT


def nearest(means: Tensor, queries: Tensor) -> Tensor:
    """The class int64 [T, M] with the nearest of the means [T, ways, d]."""
    return torch.cdist(queries, means, compute_mode="donot_use_mm_for_euclid_dist").argmin(dim=2)
