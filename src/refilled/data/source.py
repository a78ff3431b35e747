"""Where a batch's pixels come from: memory of the device, or something slower."""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor


class Source(Protocol):
    """All images of a set as uint8 [N, C, side, side], of which any rows can be had on the device."""

    device: torch.device
    shape: tuple[int, int, int, int]

    def take(self, rows: Tensor) -> Tensor:
        """Images uint8 [B, C, side, side] on the device, for rows int64 [B] on any device."""
        ...

    def stream(self, parts: Tensor) -> Iterator[Tensor]:
        """One after the other what :meth:`take` gives for each row of ``parts`` [steps, B]; the next ones
        may be fetched while one is used."""
        ...


class Resident:
    """Images that are on the device already.

    Args:
        images: uint8 [N, C, side, side].
    """

    def __init__(self, images: Tensor):
        self.images = images
        self.device = images.device
        self.shape = (images.shape[0], images.shape[1], images.shape[2], images.shape[3])

    def take(self, rows: Tensor) -> Tensor:
        """Images uint8 [B, C, side, side]."""
        return self.images[rows.to(self.device)]

    def stream(self, parts: Tensor) -> Iterator[Tensor]:
        """The same for each row of ``parts`` [steps, B]."""
        return map(self.take, parts)


def in_order(source: Source, size: int = 256) -> Iterator[Tensor]:
    """All images of a source once, uint8 [size, C, side, side] at a time; the last ones may be fewer."""
    every = torch.arange(source.shape[0])
    whole = len(every) // size * size
    for part in (every[:whole].view(-1, size), every[None, whole:]):
        if part.numel():
            yield from source.stream(part)
