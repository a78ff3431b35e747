"""Attention transfer: where a network looks, without what it sees there. It needs no common channels.

Zagoruyko, Komodakis: Paying More Attention to Attention, 2017 (activation-based attention).
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from refilled.objectives.maps import averaged_down, check_maps
from refilled.objectives.precision import full_precision


def attention(maps: Tensor) -> Tensor:
    """Mean of the squares over the channels: maps [B, C, H, W] to [B, H, W].

    Zagoruyko and Komodakis, Section 3.1, sum the squares; only the length of the result differs, and who
    compares attentions brings them to length 1.
    """
    return maps.square().mean(dim=1)


def looks(maps: Tensor, size: Sequence[int]) -> Tensor:
    """The attention as a vector of length 1, or of 0 where all maps are 0.

    Args:
        maps: [B, C, H, W]; averaged down where they are larger than ``size``.
        size: height h and width w, no larger than H and W.

    Returns:
        [B, h * w]; float64 for float64 maps, else float32.
    """
    with torch.autocast(maps.device.type, enabled=False):
        return F.normalize(attention(averaged_down(full_precision(maps), size)).flatten(1), dim=1)


def looks_gap(student: Tensor, teacher: Tensor) -> Tensor:
    """Squared gap of :func:`looks` [B, P] of both, averaged over images and positions; no gradient to the
    teacher."""
    return (student - teacher.detach().to(student.dtype)).square().sum() / max(student.numel(), 1)


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
    check_maps(student, teacher)
    size = tuple(min(sides) for sides in zip(student.shape[2:], teacher.shape[2:]))
    return looks_gap(looks(student, size), looks(teacher.detach(), size))
