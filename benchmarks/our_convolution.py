"""A candidate of our own for ``convolutions.py``: a convolution and its gradients by kernels in Triton."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

try:
    import triton

    import convolution_kernels as kernels
except ImportError:  # only a GPU needs it
    kernels = None  # type: ignore[assignment]


class ConvolvePlan(NamedTuple):
    """How a convolution, or the gradient of the maps before it, is divided."""

    pixels: int = 128
    """Of a program."""
    outputs: int = 64
    """Most that a program has."""
    channels: int = 64
    """Most of a step."""
    warps: int = 4
    stages: int = 3
    """Loads ahead, which go round the nearest cache; 1: none, and they go through it."""


class WeightPlan(NamedTuple):
    """How the gradient of the weights is divided."""

    taps: int = 3
    """Of a program: 1, 3 or 9 (with 3x3)."""
    channels: int = 64
    """Most that a program has of the maps before."""
    outputs: int = 64
    """Most that a program has of the maps behind."""
    step: int = 64
    """Pixels of a step."""
    programs: int = 132
    """About so many at once."""
    warps: int = 4
    stages: int = 3


class Plans(NamedTuple):
    """Of the three parts of a convolution; None: the library's."""

    forward: ConvolvePlan | None = None
    maps: ConvolvePlan | None = None
    weights: WeightPlan | None = None


def convolve(x: Tensor, weight: Tensor, stride: int, plan: ConvolvePlan, back: bool = False) -> Tensor:
    """The convolution of maps [N, C, H, W] by weights [D, C, side, side], with borders of side // 2, all in
    channels-last memory; back: of gradients [N, D, H, W], to those of the maps before, without strides."""
    side = weight.shape[-1]
    images, inner, height, width = x.shape
    outer = weight.shape[1] if back else weight.shape[0]
    down, across = -(-height // stride), -(-width // stride)
    y = torch.empty(
        images, outer, down, across, dtype=x.dtype, device=x.device, memory_format=torch.channels_last
    )
    pixels, block = images * down * across, min(outer, plan.outputs)
    kernels.convolve[(outer // block, triton.cdiv(pixels, plan.pixels))](
        x, weight, y, pixels, height, width, down, across,
        K=inner, N=outer, BK=min(inner, plan.channels), BN=block, M=plan.pixels, SIDE=side, STRIDE=stride,
        BACK=back, num_warps=plan.warps, num_stages=plan.stages,
    )  # fmt: skip
    return y


def weight_gradient(x: Tensor, g: Tensor, side: int, stride: int, plan: WeightPlan) -> Tensor:
    """Gradient float32 [D, C, side, side] by maps x [N, C, H, W] before and gradients g [N, D, H', W'] behind
    a convolution with borders of side // 2; both in channels-last memory, and the gradient too."""
    (_, channels, height, width), (images, outputs, down, across) = x.shape, g.shape
    pixels, taps = images * down * across, side * side
    block_c, block_d = min(channels, plan.channels), min(outputs, plan.outputs)
    here = plan.taps if side == 3 else 1
    blocks = 1 if channels < 16 else taps // here * (channels // block_c) * (outputs // block_d)
    parts = max(1, min(plan.programs // blocks, pixels // (2 * plan.step)))
    each = triton.cdiv(triton.cdiv(pixels, parts), plan.step) * plan.step
    parts = triton.cdiv(pixels, each)
    out = torch.empty(parts, outputs, side, side, channels, dtype=torch.float32, device=x.device)
    common: dict[str, Any] = {"M": plan.step, "SIDE": side, "STRIDE": stride}
    common |= {"num_warps": plan.warps, "num_stages": plan.stages}
    if channels < 16:
        columns = max(16, triton.next_power_of_2(taps * channels))
        kernels.weight_gradient_of_few[(parts,)](
            x, g, out, pixels, each, height, width, down, across, C=channels, K=columns, D=outputs, **common
        )
    else:
        kernels.weight_gradient[(blocks, parts)](
            x, g, out, pixels, each, height, width, down, across,
            C=channels, D=outputs, BC=block_c, BD=block_d, TAPS=here, **common,
        )  # fmt: skip
    return out.sum(dim=0).permute(0, 3, 1, 2)


def library(g: Tensor, x: Tensor, weight: Tensor, stride: int, which: int) -> Tensor:
    """The library's gradient of the maps (0) or of the weights (1), in the type of the maps."""
    border, wanted = [weight.shape[-1] // 2] * 2, [number == which for number in range(3)]
    return torch.ops.aten.convolution_backward(
        g, x, weight, None, [stride] * 2, border, [1, 1], False, [0, 0], 1, wanted
    )[which]


class Convolution(torch.autograd.Function):
    """A convolution with parts of our own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int, plans: Plans) -> Tensor:
        """Maps behind it; the weights are float32, the maps may be bfloat16."""
        ctx.stride, ctx.plans = stride, plans
        x = x.contiguous(memory_format=torch.channels_last)
        ours = weight.to(x.dtype, memory_format=torch.channels_last)
        ctx.save_for_backward(x, ours)
        if plans.forward is not None and x.shape[1] >= 16:
            return convolve(x, ours, stride, plans.forward)
        return F.conv2d(x, ours, None, stride, weight.shape[-1] // 2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor, None, None]:  # type: ignore[override]
        """Gradients of maps and weights."""
        x, weight = ctx.saved_tensors
        stride, plans = ctx.stride, ctx.plans
        g = g.contiguous(memory_format=torch.channels_last)
        of_x = None
        if ctx.needs_input_grad[0]:
            own = plans.maps is not None and stride == 1
            of_x = convolve(g, weight, 1, plans.maps, True) if own else library(g, x, weight, stride, 0)
        if plans.weights is not None:
            return of_x, weight_gradient(x, g, weight.shape[-1], stride, plans.weights), None, None
        return of_x, library(g, x, weight, stride, 1).float(), None, None


class OurConv(nn.Conv2d):
    """A layer with it; others become one by their class alone."""

    plans: Plans

    def forward(self, x: Tensor) -> Tensor:
        """As any convolution."""
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        with torch.autocast(kind, enabled=False):
            return Convolution.apply(x.to(dtype), self.weight, self.stride[0], self.plans)


def refused(network: nn.Module) -> str | None:
    """Why these kernels are not for a network."""
    for layer in network.modules():
        if not isinstance(layer, nn.Conv2d):
            continue
        side, inputs, outputs = layer.kernel_size[0], layer.in_channels, layer.out_channels
        plain = layer.groups == 1 and layer.bias is None and layer.dilation == (1, 1)
        if not plain or side not in (1, 3) or layer.padding != (side // 2, side // 2):
            return f"{layer}: only plain convolutions with sides of 1 and 3 and full borders are known"
        if outputs & (outputs - 1) or outputs < 16 or (inputs >= 16 and inputs & (inputs - 1)):
            return f"{layer}: numbers of channels must be powers of two"
    return None
