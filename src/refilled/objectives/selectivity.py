"""Neuron selectivity: the channels of a map are samples of where neurons respond; match their distributions.

Huang, Wang: Like What You Like: Knowledge Distill via Neuron Selectivity Transfer, 2017.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from refilled.objectives.maps import same_size
from refilled.objectives.precision import full_precision


def neuron_selectivity(student: Tensor, teacher: Tensor) -> Tensor:
    """Huang and Wang, Section 4: squared maximum mean discrepancy of the channels, averaged over images.

    Each channel is a vector of its H W values, of length 1 (0 for a channel that is 0 everywhere); the kernel
    is the polynomial (x·y)², the paper's with d = 2 and c = 0. With it the discrepancy is the squared
    distance of the mean outer products

        | Σ_c x_c x_cᵀ / C  -  Σ_c y_c y_cᵀ / C' |²

    which is a matrix over positions; where there are more of them than channels, kernels of channels are
    taken instead.

    Args:
        student: maps [B, C, H, W]; the gradient goes here.
        teacher: maps [B, C', H', W']; the larger ones are averaged down to the smaller. No gradient.

    Returns:
        Scalar; float64 for float64 maps, else float32.
    """
    with torch.autocast(student.device.type, enabled=False):
        student, teacher = same_size(full_precision(student), full_precision(teacher.detach()))
        x = F.normalize(student.flatten(2), dim=2)
        y = F.normalize(teacher.flatten(2), dim=2).to(x.dtype)
        if x.shape[2] <= max(x.shape[1], y.shape[1]):
            total = (_mean_outer_product(x) - _mean_outer_product(y)).square().sum()
        else:
            total = _kernel_mean(x, x) + _kernel_mean(y, y) - 2 * _kernel_mean(x, y)
        return total / max(len(x), 1)


def _mean_outer_product(channels: Tensor) -> Tensor:
    """[B, C, P] to [B, P, P]."""
    return channels.transpose(1, 2) @ channels / channels.shape[1]


def _kernel_mean(x: Tensor, y: Tensor) -> Tensor:
    """Mean of the kernel over all pairs of channels, summed over images: [B, C, P] and [B, C', P] to []."""
    return (x @ y.transpose(1, 2)).square().sum() / (x.shape[1] * y.shape[1])
