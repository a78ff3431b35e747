"""Distillation of what a teacher's own head says, over the classes that both networks know.

Not in the ReFilled paper, whose teacher speaks through class centres: where a few classes are shared, the
head knows those better than centres of a few images do.
"""

import torch
from torch import Tensor

from refilled.objectives.checks import check_temperature
from refilled.objectives.divergence import divergence
from refilled.objectives.precision import full_precision


def shared_kd(
    student_logits: Tensor, teacher_logits: Tensor, here: Tensor, there: Tensor, *, tau: float = 4.0
) -> Tensor:
    """τ² times the mean over the batch of p KL(teacher || student) over the shared classes, where p is the
    teacher's probability that the image is of one of them.

    Args:
        student_logits: [B, C]; the gradient goes here.
        teacher_logits: [B, C'], over the teacher's classes; no gradient.
        here: int64 [K], columns of the shared classes among the teacher's.
        there: int64 [K], columns of the same classes among the student's.
        tau: temperature of both; p has none.

    Returns:
        Scalar; float64 for float64 logits of the student, else float32. Without shared classes, or images, 0.
    """
    check_temperature(tau=tau)
    if student_logits.ndim != 2 or teacher_logits.ndim != 2 or len(student_logits) != len(teacher_logits):
        raise ValueError(
            f"logits must be [B, C] and [B, C'] of the same images, not {list(student_logits.shape)} and "
            f"{list(teacher_logits.shape)}"
        )
    if here.ndim != 1 or here.shape != there.shape:
        raise ValueError(
            f"columns of the shared classes come in pairs, not {list(here.shape)} and {list(there.shape)}"
        )
    here, there = here.contiguous(), there.contiguous()  # compiled, those with gaps write out of bounds
    with torch.autocast(student_logits.device.type, enabled=False):
        student = full_precision(student_logits)
        teacher = full_precision(teacher_logits).detach().to(student.dtype)
        trust = teacher.softmax(dim=1)[:, here].sum(dim=1)
        wanted = (teacher[:, here] / tau).log_softmax(dim=1)
        given = (student[:, there] / tau).log_softmax(dim=1)
        apart = trust * divergence(wanted, given)
        return tau * tau * apart.sum() / max(len(student), 1)
