"""Objectives on logits of teacher and student over the same classes."""

import torch
from torch import Tensor

from refilled.objectives.checks import check_same, check_temperature
from refilled.objectives.divergence import divergence
from refilled.objectives.precision import as_given, double_precision, full_precision


def kd(student_logits: Tensor, teacher_logits: Tensor, *, tau: float = 4.0) -> Tensor:
    """Hinton, Vinyals, Dean 2015: τ² KL(softmax(teacher/τ) || softmax(student/τ)), mean over the batch.

    Args:
        student_logits: [B, C]; the gradient goes here.
        teacher_logits: [B, C] over the same classes in the same order; no gradient.
        tau: temperature of both.

    Returns:
        Scalar.
    """
    check_same("student_logits", student_logits, "teacher_logits", teacher_logits)
    check_temperature(tau=tau)
    with torch.autocast(student_logits.device.type, enabled=False):
        student = (full_precision(student_logits) / tau).log_softmax(dim=1)
        teacher = (full_precision(teacher_logits).detach() / tau).log_softmax(dim=1)
        return tau * tau * divergence(teacher, student).sum() / max(len(student), 1)


def standardised_kd(student_logits: Tensor, teacher_logits: Tensor, *, tau: float = 2.0) -> Tensor:
    """Sun, Ren, Li, Wang, Cao 2024: plain distillation of z-scores, so that only the relations count.

    Each image's logits lose their mean and are divided by their standard deviation (over C; public
    code also divides by C - 1). Logits that are all equal become 0, without gradient.

    Args:
        student_logits: [B, C]; the gradient goes here.
        teacher_logits: [B, C] over the same classes in the same order; no gradient.
        tau: the paper's base temperature, of both.

    Returns:
        Scalar.
    """
    check_same("student_logits", student_logits, "teacher_logits", teacher_logits)
    with torch.autocast(student_logits.device.type, enabled=False):
        loss = kd(_standardised(student_logits), _standardised(teacher_logits.detach()), tau=tau)
        return as_given(loss, student_logits)


def _standardised(logits: Tensor) -> Tensor:
    """Rows [B, C] with mean 0 and variance 1; 0 where a row is constant."""
    logits = double_precision(logits)
    centred = logits - logits.mean(dim=1, keepdim=True)
    variance = centred.square().mean(dim=1, keepdim=True)
    rounding = (8 * torch.finfo(logits.dtype).eps) ** 2 * logits.detach().square().mean(dim=1, keepdim=True)
    varied = ~(variance <= rounding)  # NaN is seen in the loss
    return torch.where(varied, centred, 0.0) * torch.where(varied, variance, 1.0).rsqrt()
