"""Metric learning among the teacher's embeddings: the anchor is the student's, all others are the teacher's.

Budnik, Avrithis: Asymmetric Metric Learning for Knowledge Transfer, 2021. Both losses are those of the
authors' code, which sums them over one positive and a few hard negatives of a query; here every image of a
batch is a query, its positives count by their mean, and its hard negatives are the nearest in the batch.
"""

import torch
from torch import Tensor

from refilled.objectives.checks import check_rows, check_same
from refilled.objectives.precision import as_given, double_precision
from refilled.objectives.unit import unit_rows

_ZERO_SQUARED = 1e-14  # squared distances below this are rounding


def asymmetric_contrastive(
    student: Tensor,
    teacher: Tensor,
    labels: Tensor,
    *,
    margin: float = 0.7,
    negatives: int = 5,
    with_itself: bool = True,
) -> Tensor:
    """Mean over the batch of: mean of D²/2 over the positives + sum of (m - D)₊²/2 over the negatives.

    D is the distance of the student's embedding of the anchor from the teacher's of another image, both of
    length 1. Positives are the images of the anchor's class, negatives the nearest of other classes; an
    anchor without the one or the other lacks that part.

    Args:
        student: embeddings [B, d]; the gradient goes here.
        teacher: embeddings [B, d] of the same dimension; no gradient.
        labels: int64 [B].
        margin: negatives farther than this do not matter.
        negatives: how many of the nearest count.
        with_itself: the teacher's embedding of the anchor itself is a positive too (the paper's Contr+).

    Returns:
        Scalar; float64 for float64 embeddings, else float32.
    """
    _check(student, teacher, labels, margin, negatives)
    with torch.autocast(student.device.type, enabled=False):
        squared = _squared_distances(student, teacher)
        positive, same = _positives(labels, with_itself)
        near, is_negative = _nearest_negatives(squared, same, negatives)
        pulls = torch.where(positive, squared, 0.0).sum(dim=1) / positive.sum(dim=1).clamp(min=1)
        apart = near > _ZERO_SQUARED
        distance = torch.where(apart, torch.where(apart, near, 1.0).sqrt(), 0.0)
        pushes = torch.where(is_negative, (margin - distance).clamp(min=0).square(), 0.0).sum(dim=1)
        return as_given((pulls + pushes).sum() / 2 / max(len(labels), 1), student)


def asymmetric_triplet(
    student: Tensor,
    teacher: Tensor,
    labels: Tensor,
    *,
    margin: float = 0.1,
    negatives: int = 5,
    with_itself: bool = True,
) -> Tensor:
    """Mean over the batch of the sum over the negatives of the mean over the positives of (D_p² - D_n² + m)₊.

    Distances, positives and negatives are those of :func:`asymmetric_contrastive`. An anchor without
    positives or without negatives counts 0.

    Args:
        student: embeddings [B, d]; the gradient goes here.
        teacher: embeddings [B, d] of the same dimension; no gradient.
        labels: int64 [B].
        margin: by how much the squared distance of a negative should be greater.
        negatives: how many of the nearest count.
        with_itself: the teacher's embedding of the anchor itself is a positive too.

    Returns:
        Scalar; float64 for float64 embeddings, else float32.
    """
    _check(student, teacher, labels, margin, negatives)
    with torch.autocast(student.device.type, enabled=False):
        squared = _squared_distances(student, teacher)
        positive, same = _positives(labels, with_itself)
        near, is_negative = _nearest_negatives(squared, same, negatives)
        excess = (squared[:, :, None] - near[:, None, :] + margin).clamp(min=0)
        counted = torch.where(positive[:, :, None] & is_negative[:, None, :], excess, 0.0).sum(dim=(1, 2))
        loss = (counted / positive.sum(dim=1).clamp(min=1)).sum() / max(len(labels), 1)
        return as_given(loss, student)


def _check(student: Tensor, teacher: Tensor, labels: Tensor, margin: float, negatives: int) -> None:
    check_same("student", student, "teacher", teacher)
    check_rows(labels, student=student)
    if not margin > 0:
        raise ValueError(f"margin must be greater than 0, not {margin}")
    if negatives < 1:
        raise ValueError(f"negatives must be at least 1, not {negatives}")


def _squared_distances(student: Tensor, teacher: Tensor) -> Tensor:
    """Squared distances [B, B] of the student's unit embeddings from the teacher's, in float64."""
    anchors, others = unit_rows(double_precision(student)), unit_rows(double_precision(teacher.detach()))
    lengths = (anchors * anchors).sum(dim=1, keepdim=True) + (others * others).sum(dim=1)
    return lengths - 2.0 * (anchors @ others.T)


def _positives(labels: Tensor, with_itself: bool) -> tuple[Tensor, Tensor]:
    """Which images are positives of which anchor [B, B], and which are of one class [B, B]."""
    same = labels[:, None] == labels
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    return (same if with_itself else same & ~itself), same


def _nearest_negatives(squared: Tensor, same: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Squared distances [B, n] of the nearest images of other classes, and which of them are there at all."""
    only_others = squared.detach().masked_fill(same, torch.inf)
    nearest = only_others.topk(min(count, len(squared)), dim=1, largest=False).indices
    return squared.gather(1, nearest), ~same.gather(1, nearest)
