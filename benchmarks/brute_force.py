"""Comparison matching as one would write it first, for the benchmarks to measure against."""

import torch
from torch import Tensor


def brute_force(
    student: Tensor,
    teacher: Tensor,
    labels: Tensor,
    *,
    tau_student: float = 1.0,
    tau_teacher: float = 2.0,
    margin: float | None = None,
) -> Tensor:
    """All tuples at once: pairs (anchor, positive) x B candidates, masked.

    Args:
        student: embeddings [B, d].
        teacher: embeddings [B, d'].
        labels: int64 [B].
        tau_student: temperature of the student's comparison.
        tau_teacher: temperature of the teacher's comparison.
        margin: impostors are nearer than the positive's distance plus this; None: no bound.
    """
    student = torch.nn.functional.normalize(student, dim=1)
    teacher = torch.nn.functional.normalize(teacher, dim=1)
    d_student, d_teacher = torch.cdist(student, student), torch.cdist(teacher, teacher)
    same = labels[:, None] == labels[None, :]
    anchor, positive = (same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)).nonzero(
        as_tuple=True
    )
    to_positive = d_student[anchor, positive][:, None]
    impostor = ~same[anchor] & (d_student[anchor] > to_positive)
    if margin is not None:
        impostor &= d_student[anchor] < to_positive + margin
    some = impostor.any(dim=1)
    anchor, positive, impostor = anchor[some], positive[some], impostor[some]
    member = torch.cat((torch.ones_like(impostor[:, :1]), impostor), dim=1)

    def log_softmax(distance: Tensor, tau: float) -> Tensor:
        logits = torch.cat((distance[anchor, positive][:, None], distance[anchor]), dim=1) / -tau
        return logits.masked_fill(~member, -1e30).log_softmax(dim=1)

    log_teacher, log_student = log_softmax(d_teacher, tau_teacher), log_softmax(d_student, tau_student)
    return (log_teacher.exp() * (log_teacher - log_student)).sum() / some.sum().clamp(min=1)
