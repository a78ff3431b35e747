"""Variational information: how well the student's maps predict the teacher's, with a variance per channel.

Ahn, Hu, Damianou, Lawrence, Dai: Variational Information Distillation for Knowledge Transfer, 2019.
"""

import torch
from torch import Tensor

from refilled.objectives.maps import check_maps
from refilled.objectives.precision import full_precision


def variational_information(predicted: Tensor, variance: Tensor, teacher: Tensor) -> Tensor:
    """Ahn et al., Section 2: negative log-likelihood of the teacher's maps under a Gaussian.

        ((t - μ)² / σ² + log σ²) / 2

    as a mean over all values of the maps, without the constant. It is the bound on the mutual information
    with its sign turned, and may be negative.

    Args:
        predicted: the means μ [B, C, H, W]; the gradient goes here,
        variance: and to σ² [C], above 0.
        teacher: the teacher's maps [B, C, H, W]; no gradient.

    Returns:
        Scalar; float64 for float64 maps, else float32.
    """
    check_maps(predicted, teacher, same_shape=True)
    if variance.shape != predicted.shape[1:2]:
        raise ValueError(f"variance must be [{predicted.shape[1]}], not {list(variance.shape)}")
    with torch.autocast(predicted.device.type, enabled=False):
        predicted = full_precision(predicted)
        variance = variance.to(predicted.dtype).view(1, -1, 1, 1)
        gap = predicted - teacher.detach().to(predicted.dtype)
        return (gap.square() / variance + variance.log()).sum() / (2 * max(gap.numel(), 1))
