"""How far an instance should trust the teacher: λ_i / λ.

Ye, Lu, Zhan, Section 4.3.2, "Adaptively Weighted LKD". Three readings, all of the form 2 σ(-loss):

- *PL weight* (the paper): the loss of the class-centre posterior against its own favourite class;
- *head weight* (the authors' code): the same for the teacher's own head, then min-max scaled;
- *gap weight* (the paper's alternative): the divergence between teacher and student.
"""

import torch
from torch import Tensor

from refilled.objectives.checks import check_rows, check_temperature
from refilled.objectives.local_kd import local_divergence, local_log_softmax
from refilled.objectives.precision import as_given, double_precision


def confidence_weights(
    scores: Tensor, labels: Tensor | None = None, *, tau: float = 1.0, min_max: bool = False
) -> Tensor:
    """λ_i / λ = 2 σ(-CE(p, favourite of p)) with p the softmax of the scores: near 1 for a sure teacher.

    Args:
        scores: [B, C] of the class-centre classifier (PL weight) or of the teacher's own head over its
            own classes (head weight).
        labels: int64 [B]; given, only the classes in the batch take part. Leave it out for a head
            whose classes are not the student's.
        tau: temperature of the softmax.
        min_max: scale the weights so that the batch's least is 0 and its greatest 1 (all 1 where they
            are equal).

    Returns:
        Weights [B] from 0 to 1, without gradient.
    """
    if scores.ndim != 2:
        raise ValueError(f"scores must have shape [B, C], not {list(scores.shape)}")
    if labels is not None:
        check_rows(labels, scores=scores)
    check_temperature(tau=tau)
    with torch.no_grad(), torch.autocast(scores.device.type, enabled=False):
        # In float64: a teacher that knows its images by heart is sure of them to six digits and more.
        wide = double_precision(scores) / tau
        log_p = wide.log_softmax(dim=1) if labels is None else local_log_softmax(wide, labels)
        weights = 2.0 * torch.sigmoid(log_p.amax(dim=1))
        if min_max and len(weights):
            low, high = weights.min(), weights.max()
            spread = high - low
            equal = spread <= 8 * torch.finfo(weights.dtype).eps  # rounding is not to be stretched to 0..1
            weights = torch.where(equal, 1.0, (weights - low) / torch.where(equal, 1.0, spread))
        return as_given(weights, scores)


def gap_weights(
    student_logits: Tensor,
    teacher_scores: Tensor,
    labels: Tensor,
    *,
    tau_student: float = 1.0,
    tau_teacher: float = 2.0,
) -> Tensor:
    """λ_i / λ = 2 σ(-KL(teacher || student)) over the classes in the batch: 1 where they agree.

    Args:
        student_logits: [B, C].
        teacher_scores: [B, C].
        labels: int64 [B].
        tau_student: temperature of the student.
        tau_teacher: temperature of the teacher.

    Returns:
        Weights [B] from 0 to 1, without gradient.
    """
    with torch.no_grad():
        gap = local_divergence(student_logits, teacher_scores, labels, tau_student, tau_teacher)
        return 2.0 * torch.sigmoid(-gap.clamp(min=0))
