"""A convolution whose compiled form has kernels of our own where the library's are slow.

They are for what our students have: 3x3 and 1x1, few channels, half precision, on a GPU. They were chosen for
a WRN-16-2 by benchmarks/convolutions.py; of other numbers of channels and other devices nothing is known, and
the library does the work.
"""

from typing import Any

import torch
from torch import Tensor, nn

from refilled.models.convolution_calls import (
    convolve,
    convolve_plan,
    kernels,
    last,
    library,
    map_gradient,
    triton,
    weights_gradient,
)

_MOST_CHANNELS = 128  # more were not measured
_MEASURED_ON = (9, 0)  # compute capability
_TRITON = (3, 6)  # that they were tried with; earlier ones may not know all that they say
_PLACES = 2**31  # that a kernel can count


class Convolution(torch.autograd.Function):
    """A convolution without bias and with borders of side // 2, each part by our kernel or the library's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int) -> Tensor:
        """Maps behind x, of its type; the weights may be float32."""
        ctx.stride = stride
        x, weight = last(x), last(weight.to(x.dtype))
        ctx.save_for_backward(x, weight)
        return convolve(x, weight, stride, convolve_plan(weight.shape[0]))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """Gradients of maps and weights."""
        x, weight = ctx.saved_tensors
        g, stride, of_x = last(g), ctx.stride, None
        if ctx.needs_input_grad[0] and x.shape[1] < 16:
            of_x = library(g, x, weight, stride, 0)
        elif ctx.needs_input_grad[0]:
            of_x = map_gradient(g, weight, stride, (x.shape[2], x.shape[3]), convolve_plan(x.shape[1]))
        of_weight = weights_gradient(x, g, weight, stride) if ctx.needs_input_grad[1] else None
        return of_x, of_weight, None


class Conv(nn.Conv2d):
    """``torch.nn.Conv2d``, with our kernels in a compiled network, where :func:`is_known` knows the layer.

    Only there: it takes seconds to make them, and they have no second derivatives.
    """

    def forward(self, maps: Tensor) -> Tensor:
        """Maps [N, C, H, W] become [N, D, H', W']."""
        if (dtype := own_type(maps)) is not None and is_known(self):
            with torch.autocast("cuda", enabled=False):
                return Convolution.apply(maps.to(dtype), self.weight, self.stride[0])
        return super().forward(maps)


def own_type(maps: Tensor) -> torch.dtype | None:
    """That our kernels would compute in, while maps [N, C, H, W] go through a network that is being compiled;
    None: they are not for these, or nothing is compiled."""
    # Not is_compiling: that is true while exporting, too.
    if not torch.compiler.is_dynamo_compiling() or maps.device.type != "cuda":
        return None
    if not _is_known(maps.device.index):
        return None
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else maps.dtype
    fits = maps.shape[0] * maps.shape[2] * maps.shape[3] * _MOST_CHANNELS < _PLACES
    return dtype if fits and dtype in (torch.bfloat16, torch.float16) else None


def is_known(layer: nn.Conv2d) -> bool:
    """Whether our kernels are for such a layer: 1x1 or 3x3 with borders, without bias, groups or dilation;
    numbers of channels that are powers of two from 16 to 128, or fewer before."""
    side, before, behind = layer.kernel_size[0], layer.in_channels, layer.out_channels
    plain = layer.groups == 1 and layer.bias is None and layer.dilation == (1, 1)
    square = layer.kernel_size == (side, side) and layer.stride in ((1, 1), (2, 2))
    bordered = side in (1, 3) and layer.padding == (side // 2, side // 2) and layer.padding_mode == "zeros"
    few = before < 16 and side * side * before <= 64
    return plain and square and bordered and _is_wide(behind) and (few or _is_wide(before))


def _is_wide(channels: int) -> bool:
    return 16 <= channels <= _MOST_CHANNELS and channels & (channels - 1) == 0


def _is_known(device: int) -> bool:
    """Whether our kernels can run, and were measured, on such a GPU."""
    if kernels is None or tuple(map(int, triton.__version__.split(".")[:2])) < _TRITON:
        return False
    return torch.cuda.get_device_capability(device) == _MEASURED_ON


# As torch.compiler.assume_constant_result does, which imports the compiler: a second of every command.
_is_known._dynamo_marked_constant = True  # type: ignore[attr-defined]
