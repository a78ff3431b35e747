"""The images that tasks are made of, each in a few fixed views, so that a frozen teacher sees them once.

Thousands of tasks share the images of a few classes. With fixed views the teacher's embedding of any view
that any task will ever see is computed before the first of them, and looked up from then on.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from refilled.checks import check_number
from refilled.data import ImageSet, Progress, load_set
from refilled.data.augment import draw_views, show, unit_floats, view_count
from refilled.data.randomness import mixed_seed, seeded_generator
from refilled.labels import LabelSpace
from refilled.models import Network

_OF_VIEWS = mixed_seed(0x766965777365)  # apart from all other draws of a seed
_AT_ONCE = 512


@dataclass(frozen=True)
class Pool:
    """Images on a device, with their classes: what tasks are drawn from."""

    images: Tensor
    """uint8 [N, C, side, side]"""
    labels: Tensor
    """int64 [N]"""
    classes: LabelSpace

    def __len__(self) -> int:
        return len(self.labels)


def load_pool(
    images: ImageSet, size: int | None, device: torch.device | str, progress: Progress | None = None
) -> Pool:
    """Decode a set and put it on the device."""
    pixels, labels, _ = load_set(images, size, progress)
    return Pool(pixels.to(device), labels.to(device), images.classes)


class Views:
    """Every image of a pool as it is (view 0) and in ``count`` random views, drawn once.

    Args:
        pool: the images.
        augment: name of an augmentation, see :func:`refilled.data.augment.augment`.
        count: views beside the image itself; 0 for none.
        seed: which views.
    """

    def __init__(self, pool: Pool, augment: str = "crop-flip", count: int = 10, seed: int = 0):
        check_number("views", count, least=0)
        self.pool, self.augment = pool, augment
        side = (pool.images.shape[2], pool.images.shape[3])
        # On the CPU, whatever the device: the same views everywhere.
        generator = seeded_generator(seed, _OF_VIEWS)
        drawn = draw_views(augment, len(pool) * count, side, generator, torch.device("cpu"))
        drawn = drawn.unflatten(0, (len(pool), count))
        itself = unchanged_view(augment, side).to(drawn.dtype).expand(len(pool), 1, *drawn.shape[2:])
        self.shown = torch.cat([itself, drawn], dim=1).to(pool.images.device)
        """int64 [N, 1 + count], or float32 [N, 1 + count, 5] where views are endless"""

    @property
    def count(self) -> int:
        """Views of an image, itself among them."""
        return self.shown.shape[1]

    def show(self, rows: Tensor, views: Tensor) -> Tensor:
        """Float32 images [..., C, side, side] from 0 to 1 for rows [...] and numbers of views [...]."""
        flat, chosen = rows.flatten(), self.shown[rows.flatten(), views.flatten()]
        return show(self.pool.images[flat], self.augment, chosen).unflatten(0, rows.shape)

    def plain(self, rows: Tensor) -> Tensor:
        """The images of rows [...] as they are: float32 [..., C, side, side]."""
        return unit_floats(self.pool.images[rows.flatten()]).unflatten(0, rows.shape)

    @torch.no_grad()
    def embed(self, network: Network) -> Tensor:
        """What a frozen network says of every view of every image: embeddings [N, 1 + count, dim].

        The network is put into evaluation mode.
        """
        network.eval()
        numbers = torch.arange(len(self.pool) * self.count, device=self.shown.device)
        parts = [
            network.embed(self.show(part // self.count, part % self.count).to(network._mean.dtype))
            for part in numbers.split(_AT_ONCE)
        ]
        return torch.cat(parts).unflatten(0, (len(self.pool), self.count))


@torch.no_grad()
def embed_pool(network: Network, pool: Pool) -> Tensor:
    """Embeddings [N, dim] of the images of a pool as they are; the network is put into evaluation mode."""
    return Views(pool, "none", 0).embed(network).squeeze(1)


def unchanged_view(augment: str, side: tuple[int, int]) -> Tensor:
    """The view that is the image itself: int64 [], or float32 [5] where views are endless."""
    if view_count(augment, side) is None:
        return torch.tensor([0.0, 0.0, 1.0, 1.0, 0.0])
    if augment == "none":
        return torch.tensor(0)
    pad_y, pad_x = side[0] // 8, side[1] // 8
    middle = pad_y * (2 * pad_x + 1) + pad_x
    return torch.tensor(2 * middle if augment == "crop-flip" else middle)
