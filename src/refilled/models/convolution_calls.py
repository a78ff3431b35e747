"""How the kernels of :mod:`refilled.models.convolution_kernels` are called, and the work is divided.

Maps and weights are given, and come back, in channels-last memory.

Several networks of one kind can go through one call, each with weights of its own: their maps lie one network
after the other, [networks * N, C, H, W], and so do their weights, [networks * D, C, side, side].
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


def weight_plan(channels: int, outputs: int, side: int, networks: int = 1) -> WeightPlan | None:
    """What is fast for so many channels before and behind, and weights of that side; None: the library is,
    which has only one network at a time."""
    if channels >= 128 and networks == 1:
        return None
    if channels < 16 or side == 1:
        return WeightPlan(programs=132, step=128, channels=64)
    return WeightPlan(programs=264 if outputs <= 32 else 132)


def convolve(x: Tensor, weight: Tensor, stride: int, plan: ConvolvePlan, *, networks: int = 1) -> Tensor:
    """The convolution of maps [networks * N, C, H, W] by weights [networks * D, C, side, side], with borders
    of side // 2, all in channels-last memory."""
    return _convolved(x, weight, stride, plan, None, None, networks)


def convolve_and_sum(
    x: Tensor, weight: Tensor, stride: int, plan: ConvolvePlan, beside: Tensor | None = None, *,
    networks: int = 1,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same plus maps [networks * N, D, H', W'] beside it, where there are at least 16 channels; and sums
    [networks, parts, 2, D] of what comes out, and of its squares, over parts of a network's pixels."""
    pixels = x.shape[0] // networks * -(-x.shape[2] // stride) * -(-x.shape[3] // stride)
    parts = triton.cdiv(pixels, _FEW_PIXELS if x.shape[1] < 16 else plan.pixels)
    outer = weight.shape[0] // networks
    sums = torch.empty(networks, parts, 2, outer, dtype=torch.float32, device=x.device)
    return _convolved(x, weight, stride, plan, beside, sums, networks), sums


def _convolved(
    x: Tensor, weight: Tensor, stride: int, plan: ConvolvePlan, beside: Tensor | None, sums: Tensor | None,
    networks: int,
) -> Tensor:  # fmt: skip
    side = weight.shape[-1]
    images, inner, height, width = x.shape
    outer, down, across = weight.shape[0] // networks, -(-height // stride), -(-width // stride)
    y = _maps_like(x, images, outer, down, across)
    pixels, block = images // networks * down * across, min(outer, plan.outputs)
    where = (pixels, height, width, down, across)
    written = x if sums is None else sums  # something has to be given
    common: dict[str, Any] = {"N": outer, "SIDE": side, "STRIDE": stride, "SUMS": int(sums is not None)}
    if inner < 16:
        kernels.convolve_few[(triton.cdiv(pixels, _FEW_PIXELS), networks)](
            x, weight, y, written, *where, C=inner, K=_columns(side, inner), M=_FEW_PIXELS, **common
        )
        return y
    kernels.convolve[(outer // block, triton.cdiv(pixels, plan.pixels), networks)](
        x, weight, y, x if beside is None else beside, written, x, x, *where,
        K=inner, BK=min(inner, plan.channels), BN=block, M=plan.pixels, BACK=False,
        BESIDE=beside is not None, num_warps=plan.warps, num_stages=plan.stages, **common,
    )  # fmt: skip
    return y


def map_gradient(
    g: Tensor, weight: Tensor, stride: int, size: tuple[int, int], plan: ConvolvePlan, *, networks: int = 1
) -> Tensor:
    """Gradient [networks * N, C, H, W], with (H, W) = size, by gradients g [networks * N, D, H', W'] behind a
    convolution with a stride of 1 or 2, at least 16 channels and borders of side // 2; all in channels-last
    memory."""
    y = _maps_like(g, g.shape[0], weight.shape[1], *size)
    _write_gradient(g, weight, stride, plan, y, None, None, None, None, networks)
    return y


def gradient_and_sum(
    g: Tensor, weight: Tensor, stride: int, raw: Tensor, stats: Tensor, plan: ConvolvePlan,
    other: Tensor | None = None, *, networks: int = 1,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same for maps that are normalised and go through a ReLU before the convolution: the gradient in
    front of the ReLU, and sums [networks, parts, 2, C] of it, and of it times the normalised maps.

    Args:
        g: behind the convolution, [networks * N, D, H', W'].
        weight: of the convolution.
        stride: 1 or 2.
        raw: maps before normalisation, [networks * N, C, H, W].
        stats: [networks, 4, C]: factor and term that normalise them, their mean, and one by their spread.
        plan: how it is divided.
        other: another gradient behind the ReLU, [networks * N, C, H, W].
        networks: how many.
    """
    y = _maps_like(g, *raw.shape)
    pixels = g.shape[0] // networks * g.shape[2] * g.shape[3]
    parts = triton.cdiv(pixels, plan.pixels) * stride * stride
    sums = torch.empty(networks, parts, 2, raw.shape[1], dtype=torch.float32, device=g.device)
    _write_gradient(g, weight, stride, plan, y, other, sums, raw, stats, networks)
    return y, sums


def _write_gradient(
    g: Tensor, weight: Tensor, stride: int, plan: ConvolvePlan, y: Tensor, other: Tensor | None,
    sums: Tensor | None, raw: Tensor | None, stats: Tensor | None, networks: int,
) -> None:  # fmt: skip
    (images, inner, down, across), (_, outer, height, width) = g.shape, y.shape
    pixels, block = images // networks * down * across, min(outer, plan.outputs)
    common: dict[str, Any] = {"K": inner, "N": outer, "BK": min(inner, plan.channels), "BN": block}
    common |= {"M": plan.pixels, "SIDE": weight.shape[-1], "BESIDE": other is not None}
    common |= {"SUMS": 0 if sums is None else 2, "num_warps": plan.warps, "num_stages": plan.stages}
    others = [g if one is None else one for one in (other, sums, raw, stats)]  # something has to be given
    grid = (outer // block, triton.cdiv(pixels, plan.pixels))
    if stride == 1:
        kernels.convolve[(*grid, networks)](
            g, weight, y, *others, pixels, down, across, height, width, STRIDE=1, BACK=True, **common
        )
    else:
        kernels.spread[(*grid, 4 * networks)](
            g, weight, y, *others, pixels, height, width, down, across, **common
        )


def _maps_like(x: Tensor, images: int, channels: int, height: int, width: int) -> Tensor:
    """New maps in channels-last memory, of the type of x."""
    # Not by a memory format: a compiled torch.empty with one is filled with zeros (PyTorch 2.11, 2.13).
    return torch.empty(images, height, width, channels, dtype=x.dtype, device=x.device).permute(0, 3, 1, 2)


def _columns(side: int, channels: int) -> int:
    """A power of two that has all taps of all channels."""
    return max(16, triton.next_power_of_2(side * side * channels))


def weight_gradient(
    x: Tensor, g: Tensor, side: int, stride: int, plan: WeightPlan, *, networks: int = 1
) -> Tensor:
    """Gradient float32 [networks * D, C, side, side] by maps x [networks * N, C, H, W] before and gradients g
    [networks * N, D, H', W'] behind a convolution with borders of side // 2; both in channels-last memory,
    and the gradient too."""
    (_, channels, height, width), (images, outputs, down, across) = x.shape, g.shape
    pixels, taps = images // networks * down * across, side * side
    block_c, block_d = min(channels, plan.channels), min(outputs, plan.outputs)
    here = plan.taps if side == 3 else 1
    blocks = 1 if channels < 16 else taps // here * (channels // block_c) * (outputs // block_d)
    parts = max(1, min(plan.programs // blocks, pixels // (2 * plan.step)))
    each = triton.cdiv(triton.cdiv(pixels, parts), plan.step) * plan.step
    parts = triton.cdiv(pixels, each)
    out = torch.empty(networks, parts, outputs, side, side, channels, dtype=torch.float32, device=x.device)
    common: dict[str, Any] = {"M": plan.step, "SIDE": side, "STRIDE": stride}
    common |= {"num_warps": plan.warps, "num_stages": plan.stages}
    if channels < 16:
        columns = _columns(side, channels)
        kernels.weight_gradient_few[(parts, networks)](
            x, g, out, pixels, each, height, width, down, across, C=channels, K=columns, D=outputs, **common
        )
    else:
        kernels.weight_gradient[(blocks, parts, networks)](
            x, g, out, pixels, each, height, width, down, across,
            C=channels, D=outputs, BC=block_c, BD=block_d, TAPS=here, **common,
        )  # fmt: skip
    return out.sum(dim=1).flatten(0, 1).permute(0, 3, 1, 2)


def library(g: Tensor, x: Tensor, weight: Tensor, stride: int, which: int) -> Tensor:
    """The library's gradient of the maps (0) or of the weights (1), in the type of the maps."""
    border, wanted = [weight.shape[-1] // 2] * 2, [number == which for number in range(3)]
    return torch.ops.aten.convolution_backward(
        g, x, weight, None, [stride] * 2, border, [1, 1], False, [0, 0], 1, wanted
    )[which]


def weights_gradient(x: Tensor, g: Tensor, weight: Tensor, stride: int, *, networks: int = 1) -> Tensor:
    """The gradient of a convolution's weights, float32, by the faster kernel; see :func:`weight_gradient`."""
    plan = weight_plan(x.shape[1], g.shape[1], weight.shape[-1], networks)
    if plan is None:
        return library(g, x, weight, stride, 1).float()
    return weight_gradient(x, g, weight.shape[-1], stride, plan, networks=networks)


def last(maps: Tensor) -> Tensor:
    """In channels-last memory."""
    return maps.contiguous(memory_format=torch.channels_last)
