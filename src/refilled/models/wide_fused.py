"""A compiled Wide ResNet in training: normalisation along with the convolutions around it.

What a normalisation has to know of its maps, their sums, is written by the convolution that makes them; what
its gradient has to know, by the convolution that gives it. So each map is read once less in both directions.

A candidate: networks take it when :data:`SHOWN_FASTER` says so; benchmarks/convolutions.py measures it.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from refilled.models.convolution import Conv, is_known, own_type
from refilled.models.convolution_calls import (
    convolve,
    convolve_and_sum,
    convolve_plan,
    gradient_and_sum,
    kernels,
    last,
    map_gradient,
    weights_gradient,
)

if TYPE_CHECKING:
    from refilled.models.wide_resnet import PreActivationBlock, WideResNet

SHOWN_FASTER = False
"""Whether compiled networks take it. In Triton's interpreter it gives what the library gives; nothing is
known of its speed."""


class Maps(NamedTuple):
    """Maps [B, C, H, W] that are to be normalised, and sums [parts, 2, C] of them and of their squares."""

    raw: Tensor
    sums: Tensor


def statistics(maps: Maps, norm: nn.BatchNorm2d) -> Tensor:
    """[4, C]: factor and term that normalise the maps; their mean, and one by their spread.

    The layer's running statistics move as they would by itself.
    """
    channels, block = maps.raw.shape[1], 16
    parts, count = maps.sums.shape[0], maps.raw.numel() // channels
    stats = torch.empty(4, channels, dtype=torch.float32, device=maps.raw.device)
    kernels.finish[(channels // block,)](
        maps.sums, norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.num_batches_tracked,
        stats, parts, count, norm.eps, norm.momentum, C=channels, BC=block, P=256, num_warps=8,
    )  # fmt: skip
    return stats


def activated(raw: Tensor, stats: Tensor) -> Tensor:
    """Normalised maps after a ReLU."""
    scale, shift = stats[0].view(1, -1, 1, 1), stats[1].view(1, -1, 1, 1)
    return F.relu(raw.float() * scale + shift).to(raw.dtype)


def gradient_before(
    g: Tensor, weight: Tensor, stride: int, raw: Tensor, stats: Tensor, other: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of raw maps [B, C, H, W], and of the weight and bias [C] that normalise them; the arguments
    are those of :func:`refilled.models.convolution_calls.gradient_and_sum`."""
    y, sums = gradient_and_sum(g, weight, stride, raw, stats, convolve_plan(raw.shape[1]), other)
    count = raw.numel() // raw.shape[1]
    of_bias, of_weight = sums.sum(dim=0).unbind()
    scale, _, mean, spread = (row.view(1, -1, 1, 1) for row in stats.unbind())
    normal = (raw.float() - mean) * spread
    first, second = (row.view(1, -1, 1, 1) / count for row in (of_bias, of_weight))
    return (scale * (y.float() - first - normal * second)).to(raw.dtype), of_weight, of_bias


class Stem(torch.autograd.Function):
    """The first convolution; images have no gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Maps and their sums."""
        x, weight = last(x), last(weight.to(x.dtype))
        maps = Maps(*convolve_and_sum(x, weight, 1, convolve_plan(weight.shape[0])))
        ctx.save_for_backward(x, weight)
        ctx.mark_non_differentiable(maps.sums)
        return maps.raw, maps.sums

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> tuple[None, Tensor]:
        """Of the weights."""
        x, weight = ctx.saved_tensors
        return None, weights_gradient(x, last(g), weight, 1)


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
        out = Maps(*convolve_and_sum(active, weight, stride, convolve_plan(weight.shape[0]), beside))
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
            of_projection = weights_gradient(active, of_projected, rest[0], stride)
        of_raw, of_scale, of_bias = gradient_before(g, weight, stride, raw, stats, other)
        return (
            of_raw, None, of_scale, of_bias, weights_gradient(active, g, weight, stride), None,
            g if ctx.has_beside else None, of_projection,
        )  # fmt: skip


def through(block: "PreActivationBlock", maps: Maps) -> Maps:
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


def fused_maps(network: "WideResNet", prepared: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """What :meth:`WideResNet.feature_maps` gives for prepared images [B, channels, S, S], in that type."""
    with torch.autocast(prepared.device.type, enabled=False):
        maps = Maps(*Stem.apply(prepared.to(dtype), network.stem.weight))
        found = []
        for group in network.groups:
            for block in group:  # type: ignore[attr-defined]
                maps = through(block, maps)
            found.append(maps.raw)
    return [*found[:-1], F.relu(network.norm(found[-1]))]


def fused_type(network: "WideResNet", prepared: Tensor) -> torch.dtype | None:
    """That :func:`fused_maps` would compute in; None: it is not for this network now, or for these images."""
    if not SHOWN_FASTER or not network.training or (dtype := own_type(prepared)) is None:
        return None
    if network.dropout or prepared.requires_grad:
        return None
    for layer in network.modules():
        if isinstance(layer, _BatchNorm) and not _is_usual(layer):
            return None
        if isinstance(layer, nn.Conv2d) and not (isinstance(layer, Conv) and is_known(layer)):
            return None
    return dtype


def _is_usual(norm: _BatchNorm) -> bool:
    """Whether it is in training, has weights, and moves its statistics by a part of the new ones."""
    moves = norm.track_running_stats and norm.momentum is not None
    return type(norm) is nn.BatchNorm2d and norm.training and norm.affine and moves
