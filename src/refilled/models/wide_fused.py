"""A compiled Wide ResNet in training: normalisation along with the convolutions around it.

What a normalisation has to know of its maps, their sums, is written by the convolution that makes them; what
its gradient has to know, by the convolution that gives it. So each map is read once less in both directions.

Several networks of one architecture, each with weights of its own, can go through the same kernels: their
maps lie one network after the other, [networks * B, C, H, W].

Which networks that is for, and when, :mod:`refilled.models.wide_fits` says.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

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


class Maps(NamedTuple):
    """Maps [networks * B, C, H, W] that are to be normalised, and sums [networks, parts, 2, C] of them and of
    their squares."""

    raw: Tensor
    sums: Tensor


class Norms(NamedTuple):
    """The same normalisation of each network, with what it makes of maps."""

    layers: Sequence[Any]
    scale: Tensor
    """The weights [networks, C]."""
    bias: Tensor
    """[networks, C]"""
    stats: Tensor
    """[networks, 4, C]: factor and term that normalise the maps; their mean, and one by their spread."""
    new: Tensor
    """[networks, 2, C]: mean and unbiased variance, for the running statistics."""


def statistics(maps: Maps, layers: Sequence[Any]) -> Norms:
    """What the sums of the maps tell; no running statistics move yet."""
    networks, parts, _, channels = maps.sums.shape
    scale, bias = stacked([one.weight for one in layers]), stacked([one.bias for one in layers])
    stats = torch.empty(networks, 4, channels, dtype=torch.float32, device=maps.raw.device)
    new = torch.empty(networks, 2, channels, dtype=torch.float32, device=maps.raw.device)
    count, block = maps.raw.numel() // (channels * networks), 16
    kernels.finish[(channels // block, networks)](
        maps.sums, scale.detach(), bias.detach(), stats, new, parts, count, layers[0].eps,
        C=channels, BC=block, P=256, num_warps=8,
    )  # fmt: skip
    return Norms(layers, scale, bias, stats, new)


def stacked(vectors: Sequence[Tensor]) -> Tensor:
    """Vectors [C] as [networks, C]; without a copy of only one."""
    return vectors[0][None] if len(vectors) == 1 else torch.stack(list(vectors))


def joined(weights: Sequence[Tensor]) -> Tensor:
    """Weights [D, C, side, side] as [networks * D, C, side, side]; without a copy of only one."""
    return weights[0] if len(weights) == 1 else torch.cat(list(weights))


@torch.no_grad()
def move_statistics(norms: Sequence[Norms]) -> None:
    """The running statistics of all layers of all networks move as they would by themselves, at once."""
    layers = [(layer, new) for norm in norms for layer, new in zip(norm.layers, norm.new.unbind())]
    for momentum in sorted({layer.momentum for layer, _ in layers}):
        here = [(layer, new) for layer, new in layers if layer.momentum == momentum]
        running = [one for layer, _ in here for one in (layer.running_mean, layer.running_var)]
        torch._foreach_mul_(running, 1 - momentum)
        torch._foreach_add_(running, [one for _, new in here for one in new.unbind()], alpha=momentum)
    torch._foreach_add_([layer.num_batches_tracked for layer, _ in layers], 1)


def apart(maps: Tensor, networks: int) -> Tensor:
    """A view [networks, B, C, H, W]."""
    return maps.view(networks, -1, *maps.shape[1:])


def wide(values: Tensor) -> Tensor:
    """Values [networks, C] for maps [networks, B, C, H, W]."""
    return values[:, None, :, None, None]


def activated(raw: Tensor, stats: Tensor) -> Tensor:
    """Normalised maps after a ReLU."""
    scale, shift = wide(stats[:, 0]), wide(stats[:, 1])
    return F.relu(apart(raw, len(stats)).float() * scale + shift).to(raw.dtype).view(raw.shape)


def gradient_before(
    g: Tensor, weight: Tensor, stride: int, raw: Tensor, stats: Tensor, other: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of raw maps [networks * B, C, H, W], and of the weights and biases [networks, C] that
    normalise them; the arguments are those of
    :func:`refilled.models.convolution_calls.gradient_and_sum`."""
    plan, networks = convolve_plan(raw.shape[1]), len(stats)
    y, sums = gradient_and_sum(g, weight, stride, raw, stats, plan, other, networks=networks)
    of_bias, of_weight = sums.sum(dim=1).unbind(1)
    return through_norm(apart(y, networks), raw, stats, of_weight, of_bias), of_weight, of_bias


def through_norm(y: Tensor, raw: Tensor, stats: Tensor, of_weight: Tensor, of_bias: Tensor) -> Tensor:
    """The gradient of raw maps [networks * B, C, H, W], by that of the normalised maps times their weights,
    y [networks, B, C, H, W], and those of weights and biases [networks, C]."""
    count = raw.numel() // of_bias.numel()
    scale, _, mean, spread = (wide(row) for row in stats.unbind(1))
    normal = (apart(raw, len(stats)).float() - mean) * spread
    first, second = (wide(row) / count for row in (of_bias, of_weight))
    return (scale * (y.float() - first - normal * second)).to(raw.dtype).view(raw.shape)


class Stem(torch.autograd.Function):
    """The first convolution; images have no gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, networks: int) -> tuple[Tensor, Tensor]:
        """Maps and their sums."""
        x, weight, ctx.networks = last(x), last(weight.to(x.dtype)), networks
        plan = convolve_plan(weight.shape[0] // networks)
        maps = Maps(*convolve_and_sum(x, weight, 1, plan, networks=networks))
        ctx.save_for_backward(x, weight)
        ctx.mark_non_differentiable(maps.sums)
        return maps.raw, maps.sums

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> tuple[None, Tensor, None]:
        """Of the weights."""
        x, weight = ctx.saved_tensors
        return None, weights_gradient(x, last(g), weight, 1, networks=ctx.networks), None


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
        networks, active = len(stats), activated(raw, stats)
        weight, plan = last(weight.to(raw.dtype)), convolve_plan(weight.shape[0] // networks)
        out = Maps(*convolve_and_sum(active, weight, stride, plan, beside, networks=networks))
        ctx.stride, ctx.has_beside, ctx.projects = stride, beside is not None, projection is not None
        ctx.mark_non_differentiable(out.sums)
        if projection is None:
            ctx.save_for_backward(raw, stats, active, weight)
            return out.raw, out.sums
        projection = last(projection.to(raw.dtype))
        ctx.save_for_backward(raw, stats, active, weight, projection)
        return out.raw, out.sums, convolve(active, projection, stride, plan, networks=networks)

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any, of_projected: Tensor | None = None) -> tuple[Any, ...]:
        """Of maps, weights and biases."""
        raw, stats, active, weight, *rest = ctx.saved_tensors
        g, stride, networks = last(g), ctx.stride, len(stats)
        other = of_projection = None
        if ctx.projects:
            of_projected = last(of_projected)  # type: ignore[arg-type]
            size, plan = (raw.shape[2], raw.shape[3]), convolve_plan(raw.shape[1])
            other = map_gradient(of_projected, rest[0], stride, size, plan, networks=networks)
            of_projection = weights_gradient(active, of_projected, rest[0], stride, networks=networks)
        of_raw, of_scale, of_bias = gradient_before(g, weight, stride, raw, stats, other)
        of_weight = weights_gradient(active, g, weight, stride, networks=networks)
        beside = g if ctx.has_beside else None
        return of_raw, None, of_scale, of_bias, of_weight, None, beside, of_projection


class Last(torch.autograd.Function):
    """Normalisation and ReLU, with no convolution of ours behind them."""

    @staticmethod
    def forward(ctx: Any, raw: Tensor, stats: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        """Activated maps; the arguments are those of :class:`Half`."""
        ctx.save_for_backward(raw, stats)
        return activated(raw, stats)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, Tensor, Tensor]:
        """Of maps, weights and biases."""
        raw, stats = ctx.saved_tensors
        scale, shift, mean, spread = (wide(row) for row in stats.unbind(1))
        values = apart(raw, len(stats)).float()
        g = torch.where(values * scale + shift > 0, apart(last(g), len(stats)).float(), 0.0)
        of_bias, of_weight = g.sum((1, 3, 4)), (g * ((values - mean) * spread)).sum((1, 3, 4))
        return through_norm(g, raw, stats, of_weight, of_bias), None, of_weight, of_bias


def through(blocks: Sequence["PreActivationBlock"], maps: Maps, norms: list[Norms]) -> Maps:
    """Maps behind the same block of each network; its normalisations come to the list."""
    together: Sequence[Any] = blocks
    stride, projection = blocks[0].conv1.stride[0], None
    if blocks[0].shortcut is not None:
        projection = joined([block.shortcut.weight for block in together])
    inner, outer = (
        joined([one.conv1.weight for one in together]),
        joined([one.conv2.weight for one in together]),
    )
    one = statistics(maps, [block.norm1 for block in blocks])
    raw, sums, *beside = Half.apply(maps.raw, one.stats, one.scale, one.bias, inner, stride, None, projection)
    two = statistics(Maps(raw, sums), [block.norm2 for block in blocks])
    norms += [one, two]
    beside = beside[0] if beside else maps.raw
    return Maps(*Half.apply(raw, two.stats, two.scale, two.bias, outer, 1, beside, None))


def fused_maps(networks: Sequence["WideResNet"], prepared: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """What :meth:`WideResNet.feature_maps` gives of each of some networks of one architecture, in that type.

    Args:
        networks: with weights of their own.
        prepared: as many images for each, one network's after the other's, [networks * B, channels, S, S].
        dtype: of the maps.

    Returns:
        Maps [networks * B, C, H, W] after each group.
    """
    norms: list[Norms] = []
    found = []
    with torch.autocast(prepared.device.type, enabled=False):
        stems = joined([network.stem.weight for network in networks])
        maps = Maps(*Stem.apply(prepared.to(dtype), stems, len(networks)))
        for groups in zip(*[network.groups for network in networks]):
            for blocks in zip(*groups):
                maps = through(blocks, maps, norms)
            found.append(maps.raw)
        final = statistics(maps, [network.norm for network in networks])
        found[-1] = Last.apply(maps.raw, final.stats, final.scale, final.bias)
        move_statistics([*norms, final])
    return found
