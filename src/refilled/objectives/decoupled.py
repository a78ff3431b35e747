"""Decoupled knowledge distillation: how sure the teacher is, and what it would say otherwise.

Zhao, Cui, Song, Qiu, Liang: Decoupled Knowledge Distillation, 2022. Plain distillation of an image is
TCKD + (1 - p) NCKD with p the teacher's probability of its class: the surer the teacher, the less is
learnt from its other preferences. Here each part has a weight of its own.
"""

import torch
from torch import Tensor

from refilled.objectives.checks import check_rows, check_same, check_temperature
from refilled.objectives.divergence import divergence
from refilled.objectives.precision import full_precision


def dkd(
    student_logits: Tensor,
    teacher_logits: Tensor,
    labels: Tensor,
    *,
    tau: float = 4.0,
    alpha: float = 1.0,
    beta: float = 8.0,
) -> Tensor:
    """Zhao et al., Equation 7: τ² (α TCKD + β NCKD), mean over the batch.

    TCKD is the divergence over two outcomes, the image's own class or any other; NCKD the one over the
    other classes alone.

    Args:
        student_logits: [B, C]; the gradient goes here.
        teacher_logits: [B, C] over the same classes in the same order; no gradient.
        labels: int64 [B].
        tau: temperature of both.
        alpha: weight of the target class.
        beta: weight of the other classes.

    Returns:
        Scalar.
    """
    check_same("student_logits", student_logits, "teacher_logits", teacher_logits)
    check_rows(labels, student_logits=student_logits)
    check_temperature(tau=tau)
    with torch.autocast(student_logits.device.type, enabled=False):
        student_target, student_others = _decoupled(full_precision(student_logits) / tau, labels)
        teacher_target, teacher_others = _decoupled(full_precision(teacher_logits).detach() / tau, labels)
        target = divergence(teacher_target, student_target).sum()
        others = divergence(teacher_others, student_others).sum()
        return tau * tau * (alpha * target + beta * others) / max(len(labels), 1)


def _decoupled(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities of own class or any other [B, 2], and among the others alone [B, C]."""
    own = torch.zeros_like(logits, dtype=torch.bool).scatter(1, labels[:, None], True)
    # Not -inf: 0 * inf would be NaN where the own class is multiplied by its probability 0.
    others = logits.masked_fill(own, torch.finfo(logits.dtype).min / 4)
    pair = torch.cat((logits.gather(1, labels[:, None]), others.logsumexp(dim=1, keepdim=True)), dim=1)
    return pair.log_softmax(dim=1), others.log_softmax(dim=1)
