"""Self-supervision as a second task: which picture of the batch is a transformed one made from?

Xu, Liu, Li, Loy: Knowledge Distillation Meets Self-Supervision, 2020 (SSKD).
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from refilled.objectives.checks import check_rows, check_same, check_temperature
from refilled.objectives.divergence import divergence
from refilled.objectives.precision import double_precision, full_precision
from refilled.objectives.unit import unit_rows


def contrastive_scores(transformed: Tensor, normal: Tensor) -> Tensor:
    """Cosines of the transformed images with the normal ones.

    Args:
        transformed: embeddings [M, d]; the gradient goes here.
        normal: embeddings [B, d]; the gradient goes here.

    Returns:
        Scores [M, B].
    """
    if transformed.ndim != 2 or normal.ndim != 2 or transformed.shape[1] != normal.shape[1]:
        raise ValueError(
            f"transformed [M, d] and normal [B, d] must share d, not {list(transformed.shape)} "
            f"and {list(normal.shape)}"
        )
    with torch.autocast(transformed.device.type, enabled=False):
        return unit_rows(full_precision(transformed)) @ unit_rows(full_precision(normal)).T


def contrastive_prediction(transformed: Tensor, normal: Tensor, origins: Tensor) -> Tensor:
    """Xu et al., the task itself: cross-entropy of :func:`contrastive_scores` as they are.

    Args:
        transformed: embeddings [M, d]; the gradient goes here.
        normal: embeddings [B, d]; the gradient goes here.
        origins: int64 [M], the normal image from which each transformed one was made.

    Returns:
        Scalar.
    """
    check_rows(origins, transformed=transformed)
    with torch.autocast(transformed.device.type, enabled=False):
        scores = contrastive_scores(transformed, normal)
        return F.cross_entropy(scores, origins, reduction="sum") / max(len(origins), 1)


def selective_kd(
    student_scores: Tensor, teacher_scores: Tensor, labels: Tensor, *, tau: float, wrong_share: float
) -> Tensor:
    """Distillation from all answers that the teacher has right, and the least wrong of the others.

    How wrong an answer is, is the rank of the true label in it (Xu et al., error level). The loss is
    τ² KL(softmax(teacher/τ) || softmax(student/τ)), mean over what is kept; 0 where nothing is.

    Args:
        student_scores: [M, C]; the gradient goes here.
        teacher_scores: [M, C]; no gradient.
        labels: int64 [M], the true answers.
        tau: temperature of both.
        wrong_share: share of the wrong answers that is kept, rounded down.

    Returns:
        Scalar.
    """
    check_same("student_scores", student_scores, "teacher_scores", teacher_scores)
    check_rows(labels, student_scores=student_scores)
    check_temperature(tau=tau)
    if not 0 <= wrong_share <= 1:
        raise ValueError(f"wrong_share must be from 0 to 1, not {wrong_share}")
    with torch.autocast(student_scores.device.type, enabled=False):
        wanted = full_precision(teacher_scores.detach())
        kept = _least_wrong(error_levels(wanted, labels), wrong_share)
        student = (full_precision(student_scores) / tau).log_softmax(dim=1)
        teacher = (wanted / tau).log_softmax(dim=1).to(student.dtype)
        apart = divergence(teacher, student)
        unseen = apart.sum() * 0.0  # NaN is seen in the loss, whichever answers are kept
        return tau * tau * torch.where(kept, apart, 0.0).sum() / kept.sum().clamp(min=1) + unseen


def error_levels(scores: Tensor, labels: Tensor) -> Tensor:
    """How many answers score higher than the true one: int64 [M] of scores [M, C] and labels [M]."""
    return (scores > scores.gather(1, labels[:, None])).sum(dim=1)


def _least_wrong(levels: Tensor, wrong_share: float) -> Tensor:
    """Which answers are kept: bool [M]; among equally wrong ones those of lower index first."""
    wrong = (levels > 0).sum()
    # A hair more before it is rounded down: 0.7 of 10 must not be 6.
    keep = len(levels) - wrong + (double_precision(wrong) * wrong_share + 1e-6).floor().long()
    rank = torch.empty_like(levels).scatter(
        0, levels.argsort(stable=True), torch.arange(len(levels), device=levels.device)
    )
    return rank < keep
