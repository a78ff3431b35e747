"""Several networks of one architecture, each with its own images, through the same kernels.

A small network's kernels leave most of a GPU idle, and beside others they wait for each other's launch. One
kernel for all networks is launched once, and does the work of all.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from refilled.models.network import Network
from refilled.models.wide_fits import fused_type_together, would_be_fused
from refilled.models.wide_fused import fused_maps
from refilled.models.wide_resnet import WideResNet


def can_join(network: Network, dtype: torch.dtype | None) -> bool:
    """Whether there are kernels for several of its kind, on its device and in that type of autocast, once it
    is compiled."""
    return isinstance(network, WideResNet) and would_be_fused(network, dtype)


def embeddings_together(networks: Sequence[Network], images: Sequence[Tensor]) -> list[Tensor]:
    """What ``embed`` of each network says of its own images [B, channels, H, W]: embeddings [B, dim] each."""
    maps = _maps(networks, images)
    if maps is None:
        return [network.embed(own) for network, own in zip(networks, images)]
    return list(_apart(maps[-1], networks).mean(dim=(3, 4)).unbind())


def maps_and_embeddings_together(
    networks: Sequence[Network], images: Sequence[Tensor]
) -> list[tuple[list[Tensor], Tensor]]:
    """The same for ``features_and_embedding``."""
    maps = _maps(networks, images)
    if maps is None:
        return [network.features_and_embedding(own) for network, own in zip(networks, images)]
    apart = [_apart(each, networks) for each in maps]
    embeddings = apart[-1].mean(dim=(3, 4)).unbind()
    return list(zip(map(list, zip(*(each.unbind() for each in apart))), embeddings))


def _maps(networks: Sequence[Network], images: Sequence[Tensor]) -> list[Tensor] | None:
    """Maps [M * B, C, H, W] after each group of M wide ResNets; None: there are no kernels for them."""
    wide = [network for network in networks if isinstance(network, WideResNet)]
    if len(wide) < len(networks):
        return None
    prepared = torch.cat([network.prepare(own) for network, own in zip(networks, images)])
    dtype = fused_type_together(wide, prepared)
    return None if dtype is None else fused_maps(wide, prepared, dtype)


def _apart(maps: Tensor, networks: Sequence[Network]) -> Tensor:
    return maps.unflatten(0, (len(networks), -1))
