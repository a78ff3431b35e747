"""The teacher's similarities of an image to many others, taught as a distribution.

Fang, Wang, Wang, Zhang, Yang, Liu: SEED, Self-supervised Distillation for Visual Representation, 2021.
"""

import torch
from torch import Tensor

from refilled.objectives.checks import check_same, check_temperature
from refilled.objectives.precision import full_precision
from refilled.objectives.unit import unit_rows


def similarity_distillation(
    student: Tensor,
    teacher: Tensor,
    keys: Tensor,
    *,
    compared: Tensor | None = None,
    similar: Tensor | None = None,
    tau_student: float = 0.2,
    tau_teacher: float = 0.01,
) -> Tensor:
    """Fang et al.: cross-entropy of the student's similarities from the teacher's, mean over the batch.

    Each image is compared with its own teacher embedding and with the keys, which are teacher embeddings of
    other images: cosines over a temperature, then a softmax. The student's cosines are those of its own
    embedding with the same teacher embeddings.

    Args:
        student: embeddings [B, d], in the teacher's dimension; the gradient goes here.
        teacher: embeddings [B, d] of the same images; no gradient.
        keys: embeddings [K, d]; no gradient.
        compared: bool [B, K], the keys that an image is compared with; None: all.
        similar: bool [B, K], the keys that the teacher may find similar at all: the others get probability 0
            from it. None: all. An image is always similar to itself.
        tau_student: temperature of the student's similarities.
        tau_teacher: temperature of the teacher's.

    Returns:
        Scalar.
    """
    check_same("student", student, "teacher", teacher)
    if keys.ndim != 2 or keys.shape[1] != student.shape[1]:
        raise ValueError(
            f"keys must have shape [K, d] with d = {student.shape[1]} of the student, not {list(keys.shape)}"
        )
    for name, mask in (("compared", compared), ("similar", similar)):
        if mask is not None and mask.shape != (len(student), len(keys)):
            raise ValueError(
                f"{name} must have shape [B, K] = {[len(student), len(keys)]}, not {list(mask.shape)}"
            )
    check_temperature(tau_student=tau_student, tau_teacher=tau_teacher)
    with torch.autocast(student.device.type, enabled=False):
        student = unit_rows(full_precision(student))
        teacher = unit_rows(full_precision(teacher.detach()).to(student.dtype))
        keys = unit_rows(full_precision(keys.detach()).to(student.dtype))
        allowed = compared if similar is None else similar if compared is None else similar & compared
        of_student = _similarities(student, teacher, keys, compared) / tau_student
        of_teacher = _similarities(teacher, teacher, keys, allowed) / tau_teacher
        total = (of_teacher.softmax(dim=1) * of_student.log_softmax(dim=1)).sum()
        return -total / max(len(student), 1)


def _similarities(anchors: Tensor, own: Tensor, keys: Tensor, allowed: Tensor | None) -> Tensor:
    """Cosines [B, 1 + K] with the own teacher embedding and the keys; nothing at all where not allowed."""
    others = anchors @ keys.T
    if allowed is not None:
        # Not -inf: 0 * inf would be NaN where it is multiplied by the teacher's probability 0.
        others = others.masked_fill(~allowed, torch.finfo(others.dtype).min / 2**20)
    return torch.cat([(anchors * own).sum(dim=1, keepdim=True), others], dim=1)
