"""Objectives on logits of teacher and student over the same classes."""

import torch
from torch import Tensor

from refilled.objectives.checks import check_same, check_temperature, full_precision


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
        return tau * tau * (teacher.exp() * (teacher - student)).sum() / max(len(student), 1)
