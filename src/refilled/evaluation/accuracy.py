"""Accuracy of predictions: top-1, top-5, per class."""

import torch
from torch import Tensor


def top_k(logits: Tensor, labels: Tensor, k: int = 1) -> float:
    """Share of images whose label is among the k highest logits.

    Args:
        logits: [N, C].
        labels: int64 [N].
        k: cut to C.
    """
    if len(labels) == 0:
        return float("nan")
    best = logits.topk(min(k, logits.shape[1]), dim=1).indices
    return (best == labels[:, None]).any(dim=1).double().mean().item()


def per_class(predicted: Tensor, labels: Tensor, num_classes: int) -> list[float | None]:
    """Share of each class's images that are predicted as it; None for a class without images.

    Args:
        predicted: int64 [N].
        labels: int64 [N].
        num_classes: C.
    """
    right = torch.bincount(labels[predicted == labels], minlength=num_classes).tolist()
    total = torch.bincount(labels, minlength=num_classes).tolist()
    return [hits / images if images else None for hits, images in zip(right, total)]
