"""How the kernels of :mod:`refilled.models.convolution_kernels` are called, and the work is divided.

Maps and weights are given, and come back, in channels-last memory.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

try:
    import triton

    from refilled.models import convolution_kernels as kernels
except ImportError:  # only a GPU needs it
    triton = kernels = None  # type: ignore[assignment]

_FEW_PIXELS = 128  # of a program, where all taps of few channels are taken at once


class ConvolvePlan(NamedTuple):
    """How a convolution, or the gradient of the maps before it, is divided."""

    pixels: int
    """Of a program."""
    warps: int
    outputs: int = 64
    """Most that a program has."""
    channels: int = 64
    """Most of a step."""
    stages: int = 3
    """Loads ahead."""


class WeightPlan(NamedTuple):
    """How the gradient of the weights is divided."""

    programs: int
    """About so many at once."""
    taps: int = 3
    """Of a program: 1, 3 or 9 (with 3x3)."""
    channels: int = 32
    """Most that a program has of the maps before."""
    outputs: int = 64
    """Most that a program has of the maps behind."""
    step: int = 64
    """Pixels of a step."""
    warps: int = 4
    stages: int = 3


def convolve_plan(outputs: int) -> ConvolvePlan:
    """What is fast, alone and beside other trainings, for that many channels behind."""
    pixels = min(256, max(64, 8192 // outputs))
    return ConvolvePlan(pixels, warps=8 if pixels > 64 else 4)


def weight_plan(channels: int, outputs: int, side: int) -> WeightPlan | None:
    """What is fast for so many channels before and behind, and weights of that side; None: the library is."""
    if channels >= 128:
        return None
    if channels < 16 or side == 1:
        return WeightPlan(programs=132, step=128, channels=64)
    return WeightPlan(programs=264 if outputs <= 32 else 132)


def convolve(x: Tensor, weight: Tensor, stride: int, plan: ConvolvePlan) -> Tensor:
    """The convolution of maps [N, C, H, W] by weights [D, C, side, side], with borders of side // 2, all in
    channels-last memory."""
    side = weight.shape[-1]
    images, inner, height, width = x.shape
    outer, down, across = weight.shape[0], -(-height // stride), -(-width // stride)
    y = _maps_like(x, images, outer, down, across)
    pixels, block = images * down * across, min(outer, plan.outputs)
    if inner < 16:
        kernels.convolve_few[(triton.cdiv(pixels, _FEW_PIXELS),)](
            x, weight, y, pixels, height, width, down, across,
            C=inner, K=_columns(side, inner), N=outer, M=_FEW_PIXELS, SIDE=side, STRIDE=stride,
        )  # fmt: skip
        return y
    kernels.convolve[(outer // block, triton.cdiv(pixels, plan.pixels))](
        x, weight, y, pixels, height, width, down, across,
        K=inner, N=outer, BK=min(inner, plan.channels), BN=block, M=plan.pixels, SIDE=side, STRIDE=stride,
        BACK=False, num_warps=plan.warps, num_stages=plan.stages,
    )  # fmt: skip
    return y


def map_gradient(g: Tensor, weight: Tensor, stride: int, size: tuple[int, int], plan: ConvolvePlan) -> Tensor:
    """Gradient [N, C, H, W], with (H, W) = size, by gradients g [N, D, H', W'] behind a convolution with a
    stride of 1 or 2, at least 16 channels and borders of side // 2; all in channels-last memory."""
    side, (height, width) = weight.shape[-1], size
    images, inner, down, across = g.shape
    outer = weight.shape[1]
    y = _maps_like(g, images, outer, height, width)
    pixels, block = images * down * across, min(outer, plan.outputs)
    common: dict[str, Any] = {"K": inner, "N": outer, "BK": min(inner, plan.channels), "BN": block}
    common |= {"M": plan.pixels, "SIDE": side, "num_warps": plan.warps, "num_stages": plan.stages}
    grid = (outer // block, triton.cdiv(pixels, plan.pixels))
    if stride == 1:
        kernels.convolve[grid](
            g, weight, y, pixels, down, across, height, width, STRIDE=1, BACK=True, **common
        )
    else:
        kernels.spread[(*grid, 4)](g, weight, y, pixels, height, width, down, across, **common)
    return y


def _maps_like(x: Tensor, images: int, channels: int, height: int, width: int) -> Tensor:
    """New maps in channels-last memory, of the type of x."""
    # Not by a memory format: a compiled torch.empty with one is filled with zeros (PyTorch 2.11, 2.13).
    return torch.empty(images, height, width, channels, dtype=x.dtype, device=x.device).permute(0, 3, 1, 2)


def _columns(side: int, channels: int) -> int:
    """A power of two that has all taps of all channels."""
    return max(16, triton.next_power_of_2(side * side * channels))


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
        columns = _columns(side, channels)
        kernels.weight_gradient_few[(parts,)](
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


def weights_gradient(x: Tensor, g: Tensor, weight: Tensor, stride: int) -> Tensor:
    """The gradient of a convolution's weights, float32, by the faster kernel; see :func:`weight_gradient`."""
    plan = weight_plan(x.shape[1], g.shape[1], weight.shape[-1])
    if plan is None:
        return library(g, x, weight, stride, 1).float()
    return weight_gradient(x, g, weight.shape[-1], stride, plan)


def last(maps: Tensor) -> Tensor:
    """In channels-last memory."""
    return maps.contiguous(memory_format=torch.channels_last)
