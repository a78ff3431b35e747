"""In which precision an objective computes, whatever the precision around it."""

import torch
from torch import Tensor


def full_precision(x: Tensor) -> Tensor:
    """Float32 for half precision; float32 and float64 as they are."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def double_precision(x: Tensor) -> Tensor:
    """Float64, for differences of nearly equal numbers; float32 on Apple GPUs, which have no float64."""
    return x.float() if x.device.type == "mps" else x.double()


def as_given(loss: Tensor, x: Tensor) -> Tensor:
    """The loss in float64 for float64 inputs, else in float32."""
    return loss if x.dtype == torch.float64 else loss.float()
