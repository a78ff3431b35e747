"""Hints: a middle map of the student, through a regressor, predicts a middle map of the teacher.

Romero, Ballas, Kahou, Chassang, Gatta, Bengio: FitNets: Hints for Thin Deep Nets, 2015.
"""

import torch
from torch import Tensor

from refilled.objectives.maps import check_maps
from refilled.objectives.precision import full_precision


def hint(predicted: Tensor, teacher: Tensor) -> Tensor:
    """Romero et al., Equation 3: half the squared distance, as a mean over all values of the maps.

    Args:
        predicted: the regressor's maps [B, C, H, W]; the gradient goes here.
        teacher: the teacher's maps [B, C, H, W]; no gradient.

    Returns:
        Scalar; float64 for float64 maps, else float32.
    """
    check_maps(predicted, teacher, same_shape=True)
    with torch.autocast(predicted.device.type, enabled=False):
        predicted = full_precision(predicted)
        gap = predicted - teacher.detach().to(predicted.dtype)
        return gap.square().sum() / (2 * max(gap.numel(), 1))
