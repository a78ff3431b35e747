"""Jacobians: how an output would change with the pixels. They have the pixels' shape, whatever the network.

Srinivas, Fleuret: Knowledge Transfer with Jacobian Matching, 2018.
"""

import torch
from torch import Tensor

from refilled.objectives.attention import attention
from refilled.objectives.maps import same_size
from refilled.objectives.precision import full_precision


def most_attended(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """The attention of both networks where the teacher's is largest, a number for each image.

    Args:
        student: maps [B, C, H, W].
        teacher: maps [B, C', H', W']; the larger ones are averaged down to the smaller.

    Returns:
        Student's and teacher's [B], each with its gradient.
    """
    with torch.autocast(student.device.type, enabled=False):
        student, teacher = same_size(full_precision(student), full_precision(teacher))
        looks_student, looks_teacher = attention(student).flatten(1), attention(teacher).flatten(1)
        where = looks_teacher.argmax(dim=1, keepdim=True)
        return looks_student.gather(1, where)[:, 0], looks_teacher.gather(1, where)[:, 0]


def input_gradients(values: Tensor, images: Tensor, *, differentiable: bool = False) -> Tensor:
    """Gradients of each image's value with respect to its pixels, in the images' shape.

    Where images influence each other's values, as in batch normalisation that is being trained, it is the
    gradient of their sum.

    Args:
        values: [B], made from the images.
        images: [B, ...], of which gradients are recorded.
        differentiable: whether the gradients can be differentiated in turn.
    """
    # A backward pass runs outside of autocast, here as in any training.
    with torch.autocast(images.device.type, enabled=False):
        (gradients,) = torch.autograd.grad(values.sum(), images, create_graph=differentiable)
    return gradients


def jacobian_matching(student: Tensor, teacher: Tensor) -> Tensor:
    """Srinivas and Fleuret, Equation 10, last term: squared distance of the gradients, each of length 1.

    The mean over images. A gradient that is 0 everywhere stays so, and has no gradient in turn.

    Args:
        student: its gradients [B, ...] with respect to the images; the gradient goes here.
        teacher: the teacher's, of the same shape; no gradient.

    Returns:
        Scalar from 0 to 4; float64 for float64 gradients, else float32.
    """
    if student.ndim < 2 or student.shape != teacher.shape:
        raise ValueError(
            f"student and teacher must have one shape [B, ...], not {list(student.shape)} "
            f"and {list(teacher.shape)}"
        )
    with torch.autocast(student.device.type, enabled=False):
        student, teacher = full_precision(student), full_precision(teacher.detach())
        gap = _of_length_1(student.flatten(1)) - _of_length_1(teacher.flatten(1)).to(student.dtype)
        return gap.square().sum() / max(len(student), 1)


def _of_length_1(rows: Tensor) -> Tensor:
    """Rows [B, n] divided by their lengths; a row of zeros passes no gradient."""
    # Divided by its largest value first, a tiny gradient has a length that can still be told from 0.
    largest = rows.detach().abs().amax(dim=1, keepdim=True)
    rows = rows / torch.where(largest > 0, largest, 1.0)
    squared = rows.square().sum(dim=1, keepdim=True)
    is_zero = squared <= 0  # NaN is not: it is seen in the loss
    return torch.where(is_zero, 0.0, rows * torch.where(is_zero, 1.0, squared).rsqrt())
