"""Float64 inside an objective whose differences of nearly equal numbers would not survive less."""

import torch
from torch import Tensor


def double_precision(x: Tensor) -> Tensor:
    """Float64, or float32 on Apple GPUs, which have no float64."""
    return x.float() if x.device.type == "mps" else x.double()


def as_given(loss: Tensor, x: Tensor) -> Tensor:
    """The loss in float64 for float64 inputs, else in float32."""
    return loss if x.dtype == torch.float64 else loss.float()
