"""Batches of images that stay on the device: shuffled, augmented and converted there."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from refilled.data.augment import augment, unit_floats
from refilled.data.randomness import seeded_generator
from refilled.errors import UserError


@dataclass(slots=True)
class Batch:
    """What one training step sees."""

    images: Tensor
    """float32 [B, C, H, W] from 0 to 1"""
    labels: Tensor
    """int64 [B]"""
    rows: Tensor
    """int64 [B], which images of the set they are"""

    def __len__(self) -> int:
        return len(self.labels)


class Batches:
    """A set of images on a device, dealt out in shuffled, augmented batches.

    Every batch has exactly ``batch_size`` images (or all there are, if those are fewer): the last one of
    an epoch is filled up with the first images of the same shuffle. So every image is seen in every epoch,
    batch statistics never come from a handful of images, and shapes never change, which captured graphs
    and compiled steps need.

    Args:
        images: uint8 [N, C, H, W], on the device where training happens.
        labels: int64 [N], on the same device.
        batch_size: B, cut to N.
        augment: name of an augmentation, see :func:`refilled.data.augment.augment`.
        seed: decides the shuffles and augmentations of all epochs.
    """

    def __init__(self, images: Tensor, labels: Tensor, batch_size: int, augment: str = "none", seed: int = 0):
        if len(images) == 0 or len(images) != len(labels):
            raise UserError(f"batches need images and as many labels, not {len(images)} and {len(labels)}")
        if images.device != labels.device:
            raise UserError(f"images are on {images.device} and labels on {labels.device}; move one of them")
        if batch_size < 1:
            raise UserError(f"a batch has at least 1 image, not {batch_size}")
        self.images = images
        self.labels = labels
        self.batch_size = min(batch_size, len(images))
        self.augment = augment
        self.seed = seed

    def __len__(self) -> int:
        """Steps per epoch."""
        return -(-len(self.images) // self.batch_size)

    def epoch(self, number: int, salt: int = 0) -> Iterator[Batch]:
        """The batches of one epoch; a function of (seed, salt, number) alone, so that a resumed run sees
        the same ones.

        Args:
            number: which epoch.
            salt: tells apart what is trained with the same seed, such as the stages of a method.
        """
        device = self.images.device
        generator = seeded_generator(self.seed, salt, number, device=device)
        shuffled = torch.randperm(len(self.images), generator=generator, device=device)
        missing = len(self) * self.batch_size - len(shuffled)
        for rows in torch.cat([shuffled, shuffled[:missing]]).split(self.batch_size):
            images = augment(self.images[rows], self.augment, generator)
            yield Batch(images, self.labels[rows], rows)

    def ordered(self, batch_size: int | None = None) -> Iterator[Batch]:
        """All images once, as they are and in order; the last batch may be smaller. For evaluation."""
        for start in range(0, len(self.images), batch_size or self.batch_size):
            part = slice(start, start + (batch_size or self.batch_size))
            labels = self.labels[part]
            rows = torch.arange(start, start + len(labels), device=labels.device)
            yield Batch(unit_floats(self.images[part]), labels, rows)
