"""A candidate for ``convolutions.py``: a Wide ResNet in training, with normalisation along with convolution.

What a normalisation has to know of its maps, their sums, is written by the convolution that makes them; what
its gradient has to know, by the convolution that gives it. So each map is read once less in both directions.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from refilled.models.convolution import (
    _FEW_PIXELS,
    _columns,
    _maps_like,
    convolve,
    convolve_plan,
    library,
    map_gradient,
    weight_gradient,
    weight_plan,
)
from refilled.models.wide_resnet import PreActivationBlock, WideResNet

try:
    import triton

    import fused_wide_kernels as kernels
except ImportError:  # only a GPU needs it
    kernels = None  # type: ignore[assignment]


class Maps(NamedTuple):
    """Maps [B, C, H, W] that are to be normalised, and sums [parts, 2, C] of them and of their squares."""

    raw: Tensor
    sums: Tensor


def statistics(maps: Maps, norm: nn.BatchNorm2d) -> Tensor:
    """[4, C]: factor and term that normalise the maps; their mean, and one by their spread.

    The layer's running statistics move as they would by itself.
    """
    channels, block = maps.raw.shape[1], min(32, maps.raw.shape[1])
    parts, count = maps.sums.shape[0], maps.raw.numel() // channels
    stats = torch.empty(4, channels, dtype=torch.float32, device=maps.raw.device)
    kernels.finish[(channels // block,)](
        maps.sums, norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.num_batches_tracked,
        stats, parts, count, norm.eps, norm.momentum, C=channels, BC=block, P=64,
    )  # fmt: skip
    return stats


def activated(raw: Tensor, stats: Tensor) -> Tensor:
    """Normalised maps after a ReLU."""
    scale, shift = stats[0].view(1, -1, 1, 1), stats[1].view(1, -1, 1, 1)
    return F.relu(raw.float() * scale + shift).to(raw.dtype)


def convolved(x: Tensor, weight: Tensor, stride: int, beside: Tensor | None = None) -> Maps:
    """Maps behind a convolution with borders of side // 2, plus those beside it; channels-last, like x."""
    side, plan = weight.shape[-1], convolve_plan(weight.shape[0])
    images, inner, height, width = x.shape
    outer, down, across = weight.shape[0], -(-height // stride), -(-width // stride)
    y, pixels, block = (
        _maps_like(x, images, outer, down, across),
        images * down * across,
        min(outer, plan.outputs),
    )
    each = _FEW_PIXELS if inner < 16 else plan.pixels
    parts = triton.cdiv(pixels, each)
    sums = torch.empty(parts, 2, outer, dtype=torch.float32, device=x.device)
    if inner < 16:
        kernels.convolve_few[(parts,)](
            x, weight, y, sums, pixels, height, width, down, across,
            C=inner, K=_columns(side, inner), N=outer, M=each, SIDE=side, STRIDE=stride,
        )  # fmt: skip
    else:
        kernels.convolve[(outer // block, parts)](
            x, weight, x if beside is None else beside, y, sums, pixels, height, width, down, across,
            K=inner, N=outer, BK=min(inner, plan.channels), BN=block, M=each, SIDE=side, STRIDE=stride,
            BESIDE=beside is not None, num_warps=plan.warps, num_stages=plan.stages,
        )  # fmt: skip
    return Maps(y, sums)


def gradient_before(
    g: Tensor, weight: Tensor, stride: int, raw: Tensor, stats: Tensor, other: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of raw maps, and of the weight and bias that normalise them.

    Args:
        g: behind the convolution of the normalised and activated maps.
        weight: of that convolution.
        stride: its stride.
        raw: the maps, [B, C, H, W].
        stats: theirs.
        other: another gradient of the normalised and activated maps, [B, C, H, W].
    """
    plan, side = convolve_plan(raw.shape[1]), weight.shape[-1]
    (images, inner, down, across), (_, outer, height, width) = g.shape, raw.shape
    pixels, block = images * down * across, min(outer, plan.outputs)
    parts, corners = triton.cdiv(pixels, plan.pixels), stride * stride
    y = torch.empty_like(raw)
    sums = torch.empty(parts * corners, 2, outer, dtype=torch.float32, device=g.device)
    common: dict[str, Any] = {"K": inner, "N": outer, "BK": min(inner, plan.channels), "BN": block}
    common |= {"M": plan.pixels, "SIDE": side, "num_warps": plan.warps, "num_stages": plan.stages}
    given = (g, weight, g if other is None else other, raw, stats, y, sums, pixels, height, width)
    if stride == 1:
        kernels.gradient[(outer // block, parts)](*given, OTHER=other is not None, **common)
    else:
        kernels.spread[(outer // block, parts, 4)](*given, down, across, OTHER=other is not None, **common)
    count = raw.numel() // outer
    of_bias, of_weight = sums.sum(dim=0).unbind()
    scale, _, mean, spread = (row.view(1, -1, 1, 1) for row in stats.unbind())
    normal = (raw.float() - mean) * spread
    first, second = (row.view(1, -1, 1, 1) / count for row in (of_bias, of_weight))
    return (scale * (y.float() - first - normal * second)).to(raw.dtype), of_weight, of_bias


def of_weights(x: Tensor, g: Tensor, weight: Tensor, stride: int) -> Tensor:
    """The gradient of a convolution's weights, float32."""
    plan = weight_plan(x.shape[1], g.shape[1], weight.shape[-1])
    if plan is None:
        return library(g, x, weight, stride, 1).float()
    return weight_gradient(x, g, weight.shape[-1], stride, plan)


def last(maps: Tensor) -> Tensor:
    """In channels-last memory."""
    return maps.contiguous(memory_format=torch.channels_last)


class Stem(torch.autograd.Function):
    """The first convolution; images have no gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Maps and their sums."""
        x, weight = last(x), last(weight.to(x.dtype))
        maps = convolved(x, weight, 1)
        ctx.save_for_backward(x, weight)
        ctx.mark_non_differentiable(maps.sums)
        return maps.raw, maps.sums

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> tuple[None, Tensor]:
        """Of the weights."""
        x, weight = ctx.saved_tensors
        return None, of_weights(x, last(g), weight, 1)


class Half(torch.autograd.Function):
    """Normalisation, ReLU and a 3x3 convolution: half a block of
    :class:`refilled.models.wide_resnet.PreActivationBlock`, without dropout."""

    @staticmethod
    def forward(
        ctx: Any, raw: Tensor, stats: Tensor, scale: Tensor, bias: Tensor, weight: Tensor, stride: int,
        beside: Tensor | None, projection: Tensor | None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """Maps behind it, plus those beside it, their sums, and the projection of the activated maps, if any.

        ``scale`` and ``bias`` of the normalisation are in ``stats`` already; they get gradients.
        """
        weight, active = last(weight.to(raw.dtype)), activated(raw, stats)
        out = convolved(active, weight, stride, beside)
        ctx.stride, ctx.has_beside, ctx.projects = stride, beside is not None, projection is not None
        ctx.mark_non_differentiable(out.sums)
        if projection is None:
            ctx.save_for_backward(raw, stats, active, weight)
            return out.raw, out.sums
        projection = last(projection.to(raw.dtype))
        ctx.save_for_backward(raw, stats, active, weight, projection)
        return out.raw, out.sums, convolve(active, projection, stride, convolve_plan(projection.shape[0]))

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any, of_projected: Tensor | None = None) -> tuple[Any, ...]:
        """Of maps, weights and biases."""
        raw, stats, active, weight, *rest = ctx.saved_tensors
        g, stride = last(g), ctx.stride
        other = of_projection = None
        if ctx.projects:
            of_projected = last(of_projected)  # type: ignore[arg-type]
            size, plan = (raw.shape[2], raw.shape[3]), convolve_plan(raw.shape[1])
            other = map_gradient(of_projected, rest[0], stride, size, plan)
            of_projection = of_weights(active, of_projected, rest[0], stride)
        of_raw, of_scale, of_bias = gradient_before(g, weight, stride, raw, stats, other)
        return (
            of_raw, None, of_scale, of_bias, of_weights(active, g, weight, stride), None,
            g if ctx.has_beside else None, of_projection,
        )  # fmt: skip


def through(block: PreActivationBlock, maps: Maps) -> Maps:
    """Maps behind a block."""
    one, two, stride = block.norm1, block.norm2, block.conv1.stride[0]
    projection = block.shortcut.weight if block.shortcut is not None else None
    stats = statistics(maps, one)
    raw, sums, *beside = Half.apply(
        maps.raw, stats, one.weight, one.bias, block.conv1.weight, stride, None, projection
    )
    stats = statistics(Maps(raw, sums), two)
    beside = beside[0] if beside else maps.raw
    return Maps(*Half.apply(raw, stats, two.weight, two.bias, block.conv2.weight, 1, beside, None))


def fused_maps(network: WideResNet, prepared: Tensor) -> list[Tensor]:
    """What :meth:`WideResNet.feature_maps` gives in training, in the type that autocast has."""
    kind = prepared.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else prepared.dtype
    with torch.autocast(kind, enabled=False):
        maps = Maps(*Stem.apply(prepared.to(dtype), network.stem.weight))
        found = []
        for group in network.groups:
            for block in group:  # type: ignore[attr-defined]
                maps = through(block, maps)
            found.append(maps.raw)
    return [*found[:-1], F.relu(network.norm(found[-1]))]
