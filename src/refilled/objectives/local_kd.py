"""Local knowledge distillation: match only the classes that are in the batch.

Ye, Lu, Zhan, Section 4.3, "Local Knowledge Distillation": with many classes a posterior over all of them
spreads thin; over the classes at hand the teacher's preferences stand out.
"""

import torch
from torch import Tensor

from refilled.objectives.checks import check_rows, check_same, check_temperature
from refilled.objectives.divergence import divergence
from refilled.objectives.precision import full_precision


def present_classes(labels: Tensor, num_classes: int) -> Tensor:
    """Which classes occur in the batch: bool [C] for labels int64 [B]."""
    present = torch.zeros(num_classes, dtype=torch.bool, device=labels.device)
    return present.index_fill(0, labels, True)


def local_log_softmax(scores: Tensor, labels: Tensor) -> Tensor:
    """Log-softmax [B, C] over the classes in the batch; a very negative number for the others."""
    absent = ~present_classes(labels, scores.shape[1])
    # Not -inf: 0 * inf would be NaN wherever such an entry is multiplied by its probability 0.
    return scores.masked_fill(absent, torch.finfo(scores.dtype).min / 4).log_softmax(dim=1)


def local_divergence(
    student_logits: Tensor, teacher_scores: Tensor, labels: Tensor, tau_student: float, tau_teacher: float
) -> Tensor:
    """KL(teacher || student) over the classes in the batch, for each instance: [B]."""
    check_same("student_logits", student_logits, "teacher_scores", teacher_scores)
    check_rows(labels, student_logits=student_logits)
    check_temperature(tau_student=tau_student, tau_teacher=tau_teacher)
    with torch.autocast(student_logits.device.type, enabled=False):
        student = local_log_softmax(full_precision(student_logits) / tau_student, labels)
        teacher = local_log_softmax(full_precision(teacher_scores).detach() / tau_teacher, labels)
        return divergence(teacher, student)


def local_kd(
    student_logits: Tensor,
    teacher_scores: Tensor,
    labels: Tensor,
    *,
    tau_student: float = 1.0,
    tau_teacher: float = 2.0,
    weights: Tensor | None = None,
) -> Tensor:
    """Mean over the batch of weight times KL(teacher || student), over the classes in the batch.

    Args:
        student_logits: [B, C]; the gradient goes here.
        teacher_scores: [B, C], of :func:`class_scores` or any other classifier; no gradient.
        labels: int64 [B]; the classes that occur here are the ones compared.
        tau_student: temperature of the student.
        tau_teacher: temperature of the teacher.
        weights: [B] how far each instance trusts the teacher, e.g. of :func:`confidence_weights`;
            no gradient. None: 1 for all.

    Returns:
        Scalar.
    """
    apart = local_divergence(student_logits, teacher_scores, labels, tau_student, tau_teacher)
    if weights is not None:
        if weights.shape != labels.shape:
            raise ValueError(f"weights must have shape {list(labels.shape)}, not {list(weights.shape)}")
        apart = apart * weights.detach().to(apart.dtype)
    return apart.sum() / max(len(labels), 1)
