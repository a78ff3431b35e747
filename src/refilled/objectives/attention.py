"""Attention transfer: where a network looks, without what it sees there. It needs no common channels.

Zagoruyko, Komodakis: Paying More Attention to Attention, 2017 (activation-based attention).
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from refilled.objectives.maps import same_size
from refilled.objectives.precision import full_precision


def attention(maps: Tensor) -> Tensor:
    """Mean of the squares over the channels: maps [B, C, H, W] to [B, H, W].

    Zagoruyko and Komodakis, Section 3.1, sum the squares; only the length of the result differs, and who
    compares attentions brings them to length 1.
    """
    return maps.square().mean(dim=1)


def attention_transfer(student: Tensor, teacher: Tensor) -> Tensor:
    """Zagoruyko and Komodakis, Equation 2 for one pair of maps: the gap of the attentions of length 1.

    It is squared and averaged over images and positions, as in the authors' code. An image whose maps are
    all 0 has an attention of 0.

    Args:
        student: maps [B, C, H, W]; the gradient goes here.
        teacher: maps [B, C', H', W']; the larger ones are averaged down to the smaller. No gradient.

    Returns:
        Scalar; float64 for float64 maps, else float32.
    """
    with torch.autocast(student.device.type, enabled=False):
        student, teacher = same_size(full_precision(student), full_precision(teacher.detach()))
        looks_student = F.normalize(attention(student).flatten(1), dim=1)
        looks_teacher = F.normalize(attention(teacher).flatten(1), dim=1).to(student.dtype)
        return (looks_student - looks_teacher).square().sum() / max(looks_student.numel(), 1)
