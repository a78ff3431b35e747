"""The overhauled distance of feature maps: before the activation, and only where it matters after it.

Heo, Kim, Yun, Park, Kwak, Choi: A Comprehensive Overhaul of Feature Distillation, 2019.
"""

import torch
from torch import Tensor

from refilled.objectives.maps import check_maps
from refilled.objectives.precision import double_precision, full_precision


def partial_distance(student: Tensor, teacher: Tensor, margins: Tensor) -> Tensor:
    """Heo et al., Section 3: squared distance to the teacher's margin ReLU, where it is not idle.

    The teacher's responses t become max(t, m) with a margin m below 0 for each channel. Where that is not
    above 0, a student's response that is no larger costs nothing: it will be cut off anyway.

    Args:
        student: responses before the activation [B, C, H, W]; the gradient goes here.
        teacher: the teacher's [B, C, H, W]; no gradient.
        margins: [C], from :func:`negative_sums`.

    Returns:
        Scalar, the sum over a map, averaged over images; float64 for float64 maps, else float32.
    """
    check_maps(student, teacher, same_shape=True)
    if margins.shape != student.shape[1:2]:
        raise ValueError(f"margins must be [{student.shape[1]}], not {list(margins.shape)}")
    with torch.autocast(student.device.type, enabled=False):
        student = full_precision(student)
        floor = margins.detach().to(student.dtype).view(1, -1, 1, 1)
        target = torch.maximum(teacher.detach().to(student.dtype), floor)
        counts = ~((student <= target) & (target <= 0))  # NaN is seen in the loss
        return torch.where(counts, student - target, 0.0).square().sum() / max(len(student), 1)


def negative_sums(maps: Tensor) -> Tensor:
    """Sum and number of the negative responses of each channel: maps [B, C, H, W] to [2, C].

    Added up over all images, their quotient is the mean of a channel's negative responses, which is Heo et
    al.'s margin. The result is float64 (float32 on Apple GPUs), for sums over many images.
    """
    maps = full_precision(maps.detach())
    total, count = maps.clamp(max=0).sum(dim=(0, 2, 3)), (maps < 0).sum(dim=(0, 2, 3))
    return torch.stack([double_precision(total), double_precision(count)])
