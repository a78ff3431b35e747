"""Where a batch's pixels come from: memory of the device, or something slower."""

import hashlib
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


class Joined:
    """Two sources as one: the rows of the second follow those of the first.

    Args:
        first, second: of images of one size, on one device.
    """

    def __init__(self, first: Source, second: Source):
        self.first, self.second, self.device = first, second, first.device
        self.shape = (first.shape[0] + second.shape[0], *first.shape[1:])

    def take(self, rows: Tensor) -> Tensor:
        """Images uint8 [B, C, side, side], from whichever source each is."""
        early = (rows < self.first.shape[0]).to(self.device)
        images = torch.empty(len(rows), *self.shape[1:], dtype=torch.uint8, device=self.device)
        for source, own, start in ((self.first, early, 0), (self.second, ~early, self.first.shape[0])):
            images[own] = source.take(rows.to(self.device)[own] - start)
        return images

    def stream(self, parts: Tensor) -> Iterator[Tensor]:
        """The same for each row of ``parts`` [steps, B]. Where each begins with as many rows of the first
        source, and ends with those of the second, both fetch ahead."""
        start = self.first.shape[0]
        early = parts < start
        count = int(early.sum(dim=1).max()) if len(parts) else 0
        if not bool(early[:, :count].all()) or bool(early[:, count:].any()):
            return map(self.take, parts)
        both = zip(self.first.stream(parts[:, :count]), self.second.stream(parts[:, count:] - start))
        return (torch.cat(pair) for pair in both)


def join(first: Source, second: Source) -> Source:
    """Both as one source, in this order; what is on the device already stays there."""
    if isinstance(first, Resident) and isinstance(second, Resident):
        return Resident(torch.cat([first.images, second.images]))
    return Joined(first, second)


def common_images(first: Source, second: Source) -> int:
    """How many images of the second source are, pixel by pixel, in the first too."""
    known = set(_digests(first))
    return sum(digest in known for digest in _digests(second))


def _digests(source: Source) -> Iterator[bytes]:
    for images in in_order(source):
        for image in images.cpu().numpy():
            yield hashlib.blake2b(image.tobytes(), digest_size=16).digest()


def in_order(source: Source, size: int = 256) -> Iterator[Tensor]:
    """All images of a source once, uint8 [size, C, side, side] at a time; the last ones may be fewer."""
    every = torch.arange(source.shape[0])
    whole = len(every) // size * size
    for part in (every[:whole].view(-1, size), every[None, whole:]):
        if part.numel():
            yield from source.stream(part)
