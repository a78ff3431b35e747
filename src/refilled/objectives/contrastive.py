"""Contrast with a memory of all images: noise-contrastive estimation, and the negatives it needs.

Tian, Krishnan, Isola: Contrastive Representation Distillation, 2020 (CRD). An image's embedding is told
apart from those of images of other classes, which come from a memory of all training images.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from refilled.objectives.checks import check_temperature
from refilled.objectives.precision import full_precision
from refilled.objectives.unit import unit_rows


def memory_scores(anchors: Tensor, memory: Tensor, candidates: Tensor, *, tau: float = 0.07) -> Tensor:
    """Cosines of each anchor with its candidates in a memory, over the temperature.

    Args:
        anchors: embeddings [B, d]; the gradient goes here.
        memory: embeddings [N, d] of all images; no gradient.
        candidates: int64 [B, n], rows of the memory for each anchor.
        tau: temperature.

    Returns:
        Scores [B, n].
    """
    if anchors.ndim != 2 or memory.ndim != 2 or anchors.shape[1] != memory.shape[1]:
        raise ValueError(
            f"anchors [B, d] and memory [N, d] must share d, not {list(anchors.shape)} "
            f"and {list(memory.shape)}"
        )
    if candidates.ndim != 2 or len(candidates) != len(anchors):
        raise ValueError(
            f"candidates must have shape [B, n] with B = {len(anchors)} anchors, not {list(candidates.shape)}"
        )
    check_temperature(tau=tau)
    with torch.autocast(anchors.device.type, enabled=False):
        anchors = unit_rows(full_precision(anchors))
        memory = unit_rows(full_precision(memory.detach()).to(anchors.dtype))
        # All scores and then the candidates': B (N + n) numbers, where their embeddings would be B n d.
        return (anchors @ memory.T).gather(1, candidates) / tau


def log_partition(scores: Tensor, images: int) -> Tensor:
    """Logarithm of the constant that makes exp(scores) probabilities of ``images`` images, on average.

    Args:
        scores: [B, n], of :func:`memory_scores`.
        images: number of images in the memory, N.

    Returns:
        Scalar: log of N times the mean of exp(scores); no gradient.
    """
    with torch.autocast(scores.device.type, enabled=False):
        scores = full_precision(scores.detach())
        return scores.flatten().logsumexp(dim=0) + math.log(images / max(scores.numel(), 1))


def noise_contrast(scores: Tensor, log_z: Tensor, images: int) -> Tensor:
    """Tian et al., Equation 18: tell the positive from K negatives, mean over the batch.

    With P = exp(score) / Z and the noise K / N of K negatives among N images, the loss of an image is

        -log(P_0 / (P_0 + K/N)) - Σ log((K/N) / (P_k + K/N)),

    written with softplus, so that nothing overflows. The 1e-7 that the authors' code adds to the
    denominators is left out.

    Args:
        scores: [B, 1 + K], the positive's first, of :func:`memory_scores`; the gradient goes here.
        log_z: scalar, the logarithm of Z; no gradient.
        images: number of images in the memory, N.

    Returns:
        Scalar.
    """
    if scores.ndim != 2 or scores.shape[1] < 2:
        raise ValueError(f"scores must have shape [B, 1 + K] with K > 0, not {list(scores.shape)}")
    with torch.autocast(scores.device.type, enabled=False):
        scores = full_precision(scores)
        log_odds = scores - log_z.detach().to(scores.dtype) - math.log((scores.shape[1] - 1) / images)
        loss = F.softplus(-log_odds[:, 0]).sum() + F.softplus(log_odds[:, 1:]).sum()
        return loss / max(len(scores), 1)


def rows_by_class(labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """The images of a set, class by class: what :func:`draw_others` draws from.

    Args:
        labels: int64 [N], from 0 to num_classes - 1.
        num_classes: number of classes C.

    Returns:
        Rows of the set in the order of their classes [N], where each class begins [C], its size [C].
    """
    sizes = torch.bincount(labels, minlength=num_classes)
    return labels.argsort(stable=True), sizes.cumsum(0) - sizes, sizes


def draw_others(labels: Tensor, order: Tensor, first: Tensor, sizes: Tensor, random: Tensor) -> Tensor:
    """Draw images of other classes: never one of an image's own, each of the others equally often.

    A random place among the N - n_c images that are not of class c is a place in the order of classes in
    which c's own stretch is skipped. An image may be drawn more than once.

    Args:
        labels: int64 [B].
        order: int64 [N], of :func:`rows_by_class`.
        first: int64 [C], of :func:`rows_by_class`.
        sizes: int64 [C], of :func:`rows_by_class`; no class may hold all images.
        random: int64 [B, K], random numbers from 0 to some limit that is large beside N.

    Returns:
        Rows int64 [B, K].
    """
    own, begins = sizes[labels][:, None], first[labels][:, None]
    drawn = random % (len(order) - own)
    return order[drawn + own * (drawn >= begins)]
