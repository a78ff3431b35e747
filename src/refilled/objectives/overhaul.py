"""The overhauled distance of feature maps: before the activation, and only where it matters after it.

Heo, Kim, Yun, Park, Kwak, Choi: A Comprehensive Overhaul of Feature Distillation, 2019.
"""

import torch
from torch import Tensor

from refilled.objectives.maps import check_maps
from refilled.objectives.precision import full_precision


def partial_distance(student: Tensor, teacher: Tensor, margins: Tensor) -> Tensor:
    """Heo et al., Section 3: squared distance to the teacher's margin ReLU, where it is not idle.

    The teacher's responses t become max(t, m) with a margin m below 0 for each channel. Where that is not
    above 0, a student's response that is no larger costs nothing: it will be cut off anyway.

    Args:
        student: responses before the activation [B, C, H, W]; the gradient goes here.
        teacher: the teacher's [B, C, H, W]; no gradient.
        margins: [C], see :func:`negative_means`.

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
        counts = (student > target) | (target > 0)
        return torch.where(counts, student - target, 0.0).square().sum() / max(len(student), 1)


class NegativeMeans:
    """Heo et al., Equation 5: the margin of a channel is the mean of its negative responses.

    The authors' code takes it from the batch normalisation before the activation, as if responses were
    normally distributed; here it is what the responses are, so that any network will do.

    Args:
        channels: C.
        device: of the maps.
    """

    def __init__(self, channels: int, device: torch.device):
        self._total = torch.zeros(channels, dtype=torch.float32, device=device)
        self._count = torch.zeros(channels, dtype=torch.float32, device=device)
