"""Correlations instead of equal probabilities: the student may be less sure than a strong teacher.

Huang, You, Wang, Qian, Xu: Knowledge Distillation from A Stronger Teacher, 2022 (DIST).
"""

import torch
from torch import Tensor

from refilled.objectives.checks import check_same, check_temperature
from refilled.objectives.precision import as_given, double_precision


def dist(
    student_logits: Tensor,
    teacher_logits: Tensor,
    *,
    tau: float = 1.0,
    beta: float = 2.0,
    gamma: float = 2.0,
) -> Tensor:
    """Huang et al.: τ² (β inter + γ intra), each 1 less a mean Pearson correlation of probabilities.

    Inter-class relations are correlations over the classes of an image, intra-class relations those over
    the images of a class. A row or column that is constant has no correlation and counts 0 in the loss,
    without gradient: all columns in a batch of one image. The factor τ² is that of the authors' code;
    what they add to a denominator to keep it from 0 is left out.

    Args:
        student_logits: [B, C]; the gradient goes here.
        teacher_logits: [B, C] over the same classes in the same order; no gradient.
        tau: temperature of both.
        beta: weight of the inter-class relations.
        gamma: weight of the intra-class relations.

    Returns:
        Scalar.
    """
    check_same("student_logits", student_logits, "teacher_logits", teacher_logits)
    check_temperature(tau=tau)
    with torch.autocast(student_logits.device.type, enabled=False):
        student = (double_precision(student_logits) / tau).softmax(dim=1)
        teacher = (double_precision(teacher_logits).detach() / tau).softmax(dim=1)
        inter, intra = _uncorrelated(student, teacher), _uncorrelated(student.T, teacher.T)
        return as_given(tau * tau * (beta * inter + gamma * intra), student_logits)


def _uncorrelated(a: Tensor, b: Tensor) -> Tensor:
    """Mean over the rows of 1 - Pearson correlation."""
    unit_a, varied_a = _standard_rows(a)
    unit_b, varied_b = _standard_rows(b)
    gaps = torch.where(varied_a & varied_b, 1.0 - (unit_a * unit_b).sum(dim=1), 0.0)
    return gaps.sum() / max(len(a), 1)


def _standard_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows with mean 0 and length 1, and which of them vary at all [rows]."""
    centred = x - x.mean(dim=1, keepdim=True)
    squared = centred.square().sum(dim=1, keepdim=True)
    rounding = (8 * torch.finfo(x.dtype).eps) ** 2 * x.detach().square().sum(dim=1, keepdim=True)
    varied = ~(squared <= rounding.clamp(min=torch.finfo(x.dtype).tiny))  # NaN is seen in the loss
    return torch.where(varied, centred, 0.0) * torch.where(varied, squared, 1.0).rsqrt(), varied[:, 0]
