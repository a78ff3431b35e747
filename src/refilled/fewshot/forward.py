"""One pass of T networks of one architecture, each with its own weights over its own batch.

All ways give the same numbers up to rounding:

- ``loop``: one network after the other. On a CPU a small batch fills the cores already: the fastest there.
- ``grouped``: the T tasks of a ConvNet become T groups of channels, [B, T * C, side, side]. Convolutions
  have T groups; normalisation, activation and pooling work channel by channel and need no change.
- ``matrices``: the same, with each convolution written as T products of matrices (im2col). It moves nine
  times the bytes, but where grouped convolutions are slow, batched products are not.
- ``fused``: a ConvNet on a GPU, by kernels of our own; see :mod:`refilled.fewshot.fused`. The fastest there.
- ``vmap``: any network, by torch.func.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from refilled.errors import UserError
from refilled.models import Network
from refilled.models.convnet import ConvNet

Way = Literal["auto", "loop", "grouped", "matrices", "fused", "vmap"]
State = dict[str, Tensor]
"""Tensors [T, ...] by the name they have in one network."""


def forward(
    network: Network, weights: State, statistics: State, images: Tensor, way: Way = "auto"
) -> tuple[Tensor, Tensor]:
    """Embeddings [T, B, dim] and logits [T, B, classes].

    In the network's training mode each task is normalised by the statistics of its own batch, which also
    update its own running ``statistics`` in place; in evaluation mode by its running ones.

    Args:
        network: says what is computed; its own weights are not used.
        weights: parameters.
        statistics: running means and variances.
        images: [T, B, C, side, side] from 0 to 1.
        way: see the module; ``auto``: loop on a CPU; else for a ConvNet fused, or matrices where that cannot
            be, and vmap for other networks.
    """
    if way == "auto":
        way = _fitting_way(network, images)
    if way == "loop":
        return _one_by_one(network, weights, statistics, images)
    if way == "vmap":

        def one(weights: State, statistics: State, images: Tensor) -> tuple[Tensor, Tensor]:
            return functional_call(network, (weights, statistics), (images,))

        return vmap(one, randomness="different")(weights, statistics, images)
    if not isinstance(network, ConvNet):
        raise UserError(f"{way} is for ConvNets; take vmap or loop for {network.spec}")
    if way == "fused":
        if not _can_fuse(network, images):
            raise UserError(
                "fused needs Triton, no double precision and images of at least "
                f"{2 ** len(network.blocks)} pixels; take matrices"
            )
        return _fused(network, weights, statistics, images)
    return _convnet(network, weights, statistics, images, _WAYS[way])


def _fitting_way(network: Network, images: Tensor) -> Way:
    if images.device.type == "cpu":
        return "loop"
    if not isinstance(network, ConvNet):
        return "vmap"
    return "fused" if images.device.type == "cuda" and _can_fuse(network, images) else "matrices"


def _can_fuse(network: ConvNet, images: Tensor) -> bool:
    small = min(images.shape[-2:]) < 2 ** len(network.blocks)  # a map of one pixel would not be pooled
    return find_spec("triton") is not None and images.dtype != torch.float64 and not small


def _one_by_one(network: Network, weights: State, statistics: State, images: Tensor) -> tuple[Tensor, Tensor]:
    outputs = []
    for task, batch in enumerate(images):
        # Views of the stacked tensors: running statistics are updated in them.
        state = {name: value[task] for name, value in (weights | statistics).items()}
        outputs.append(functional_call(network, state, (batch,)))
    return torch.stack([z for z, _ in outputs]), torch.stack([logits for _, logits in outputs])


def _convnet(
    network: ConvNet,
    weights: State,
    statistics: State,
    images: Tensor,
    convolve: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """What :class:`ConvNet` computes, with the tasks as groups of channels."""
    tasks, size = images.shape[:2]
    prepared = network.prepare(images.flatten(0, 1)).unflatten(0, (tasks, size))
    maps = prepared.transpose(0, 1).flatten(1, 2)  # [B, T * C, side, side]
    for number, block in enumerate(network.blocks):
        assert isinstance(block, nn.Sequential)
        _, normalise, activate, halve = block
        assert isinstance(normalise, nn.BatchNorm2d)
        layer, norm = f"blocks.{number}.0", f"blocks.{number}.1"
        maps = convolve(maps, weights[f"{layer}.weight"], weights[f"{layer}.bias"])
        maps = F.batch_norm(
            maps,
            statistics[f"{norm}.running_mean"].view(-1),
            statistics[f"{norm}.running_var"].view(-1),
            weights[f"{norm}.weight"].flatten(),
            weights[f"{norm}.bias"].flatten(),
            network.training,
            normalise.momentum or 0.0,
            normalise.eps,
        )
        maps = activate(halve(maps))  # the largest of four is the same, and a quarter is left to activate
    z = maps.mean(dim=(2, 3)).unflatten(1, (tasks, -1)).transpose(0, 1)
    return z, z @ weights["head.weight"].mT + weights["head.bias"][:, None]


def _fused(network: ConvNet, weights: State, statistics: State, images: Tensor) -> tuple[Tensor, Tensor]:
    """The same by :mod:`refilled.fewshot.fused`, in autocast's type where there is an autocast."""
    from refilled.fewshot.fused import Block  # needs Triton

    kind = images.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else images.dtype
    prepared = network.prepare(images.flatten(0, 1)).unflatten(0, images.shape[:2])
    maps = prepared.permute(0, 1, 3, 4, 2).to(dtype).contiguous()
    for number, block in enumerate(network.blocks):
        assert isinstance(block, nn.Sequential)
        normalise = block[1]
        assert isinstance(normalise, nn.BatchNorm2d)
        layer, norm = f"blocks.{number}.0", f"blocks.{number}.1"
        names = (f"{layer}.weight", f"{layer}.bias", f"{norm}.weight", f"{norm}.bias")
        own = [weights[name] for name in names]
        running_mean, running_var = statistics[f"{norm}.running_mean"], statistics[f"{norm}.running_var"]
        known = (None, None) if network.training else (running_mean, running_var)
        count = maps[0, ..., 0].numel()
        maps, mean, variance = Block.apply(maps, *own, *known, normalise.eps)
        if network.training:
            with torch.no_grad():
                running_mean.lerp_(mean.to(running_mean.dtype), normalise.momentum or 0.0)
                unbiased = (variance * count / (count - 1)).to(running_var.dtype)
                running_var.lerp_(unbiased, normalise.momentum or 0.0)
    z = maps.to(weights["head.weight"].dtype).mean(dim=(2, 3))
    return z, z @ weights["head.weight"].mT + weights["head.bias"][:, None]


def _grouped(maps: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Maps [B, T * I, H, W] to [B, T * O, H, W] by weights [T, O, I, 3, 3] and biases [T, O]."""
    return F.conv2d(maps, weight.flatten(0, 1), bias.flatten(), padding=1, groups=len(weight))


def _matrices(maps: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The same: the nine neighbours of every pixel in a column, times the weights as a matrix."""
    size, _, height, width = maps.shape
    columns = F.unfold(maps, 3, padding=1).view(size, len(weight), -1, height * width)
    products = weight.flatten(2) @ columns  # perhaps in bfloat16, and then the sums too
    return (products + bias[:, :, None].to(products.dtype)).view(size, -1, height, width)


_WAYS = {"grouped": _grouped, "matrices": _matrices}
