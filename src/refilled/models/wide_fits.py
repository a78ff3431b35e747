"""Which Wide ResNets go through the kernels of :mod:`refilled.models.wide_fused`, and when.

A candidate: networks take it when :data:`SHOWN_FASTER` says so; benchmarks/convolutions.py measures it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from refilled.models import convolution
from refilled.models.convolution import Conv, is_known, own_type

if TYPE_CHECKING:
    from refilled.models.wide_resnet import WideResNet

SHOWN_FASTER = False
"""Whether compiled networks take it. In Triton's interpreter it gives what the library gives; nothing is
known of its speed."""


def fused_type(network: "WideResNet", prepared: Tensor) -> torch.dtype | None:
    """That :func:`refilled.models.wide_fused.fused_maps` would compute in; None: it is not for this network
    now, or for these images."""
    if not SHOWN_FASTER or not network.training or (dtype := own_type(prepared)) is None:
        return None
    if prepared.requires_grad or not _has_usual_layers(network):
        return None
    norms = [layer for layer in network.modules() if isinstance(layer, _BatchNorm)]
    return dtype if all(norm.training for norm in norms) else None


def fused_type_together(networks: Sequence["WideResNet"], prepared: Tensor) -> torch.dtype | None:
    """The same for all of them; None: it is not for one, or they differ in more than their weights."""
    dtypes = [fused_type(network, prepared) for network in networks]
    alike = all(_form(network) == _form(networks[0]) for network in networks[1:])
    return dtypes[0] if alike and None not in dtypes else None


def would_be_fused(network: "WideResNet", dtype: torch.dtype | None) -> bool:
    """Whether :func:`fused_type` will give a type for it, where it is now, once it is compiled and in
    training in that type of autocast."""
    device = network.stem.weight.device
    if not SHOWN_FASTER or dtype not in (torch.bfloat16, torch.float16) or device.type != "cuda":
        return False
    return convolution._is_known(device.index) and _has_usual_layers(network)


def _has_usual_layers(network: "WideResNet") -> bool:
    """Whether all are such as the kernels replace; their modes aside."""
    for layer in network.modules():
        if isinstance(layer, _BatchNorm) and not _is_usual(layer):
            return False
        if isinstance(layer, nn.Conv2d) and not (isinstance(layer, Conv) and is_known(layer)):
            return False
    return not network.dropout


def _is_usual(norm: _BatchNorm) -> bool:
    """Whether it has weights, and moves its statistics by a part of the new ones."""
    moves = norm.track_running_stats and norm.momentum is not None
    return type(norm) is nn.BatchNorm2d and norm.affine and moves


def _form(network: "WideResNet") -> list[tuple[Any, ...]]:
    """What networks need in common: shapes of all weights, strides, and how they normalise."""
    found: list[tuple[Any, ...]] = []
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            found.append((layer.weight.shape, layer.stride))
        elif isinstance(layer, _BatchNorm):
            found.append((layer.num_features, layer.eps, layer.momentum))
    return found
