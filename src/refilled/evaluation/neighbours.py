"""Classifiers without training: how good is an embedding by itself?"""

import torch
from torch import Tensor
from torch.nn import functional as F

from refilled.objectives import class_centres


def nearest_class_mean(train: Tensor, train_labels: Tensor, test: Tensor, num_classes: int) -> Tensor:
    """Class whose centre is nearest, all embeddings l2-normalised.

    Args:
        train: embeddings [N, d].
        train_labels: int64 [N].
        test: embeddings [M, d].
        num_classes: C; a class without training images is never predicted.

    Returns:
        int64 [M].
    """
    centres = class_centres(F.normalize(train.float(), dim=1), train_labels, num_classes)
    distances = torch.cdist(F.normalize(test.float(), dim=1), centres)
    absent = torch.bincount(train_labels, minlength=num_classes) == 0
    return distances.masked_fill(absent, float("inf")).argmin(dim=1)


def nearest_neighbour(train: Tensor, train_labels: Tensor, test: Tensor, *, chunk: int = 2048) -> Tensor:
    """Label of the nearest training image (1NN), all embeddings l2-normalised.

    Args:
        train: embeddings [N, d].
        train_labels: int64 [N].
        test: embeddings [M, d].
        chunk: test rows taken at once, so that memory stays at chunk * N.

    Returns:
        int64 [M].
    """
    train = F.normalize(train.float(), dim=1)
    found = [(F.normalize(part.float(), dim=1) @ train.T).argmax(dim=1) for part in test.split(chunk)]
    return train_labels[torch.cat(found)] if found else train_labels[:0]
