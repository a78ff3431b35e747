"""Labelled images, before they are pixels on a device: what every reader returns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from refilled.labels import LabelSpace

Progress = Callable[[int, int], None]
"""Called with (done, total) while images are decoded."""


class Pixels(Protocol):
    """Images that can be turned into one uint8 tensor: held in memory, or files on disk."""

    def __len__(self) -> int: ...

    def select(self, rows: Sequence[int]) -> "Pixels":
        """Only those images, in that order; nothing is decoded."""
        ...

    def load(self, size: int | None, progress: Progress | None = None) -> tuple[Tensor, Tensor]:
        """All images as uint8 [N, channels, size, size] and the rows [N] that could be read."""
        ...


@dataclass(frozen=True)
class ImageSet:
    """Images with labels; ``labels[i]`` is the position of image i's class in ``classes``."""

    pixels: Pixels
    labels: Tensor
    """int64 [N]"""
    classes: LabelSpace

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, rows: Tensor) -> "ImageSet":
        """Only those rows (int64 [M]), in that order."""
        return replace(self, pixels=self.pixels.select(rows.tolist()), labels=self.labels[rows])

    def only(self, classes: LabelSpace) -> "ImageSet":
        """Images of those classes alone, labelled by their order."""
        wanted = {self.classes.label(name): new for new, name in enumerate(classes)}
        mapping = torch.full((len(self.classes),), -1, dtype=torch.int64)
        for old, new in wanted.items():
            mapping[old] = new
        relabelled = mapping[self.labels]
        rows = torch.nonzero(relabelled >= 0).squeeze(1)
        return ImageSet(self.pixels.select(rows.tolist()), relabelled[rows], classes)

    def counts(self) -> Tensor:
        """Number of images of each class: int64 [classes]."""
        return torch.bincount(self.labels, minlength=len(self.classes))


@dataclass(frozen=True)
class Splits:
    """A data set in its three disjoint parts; a part that the data does not have is empty."""

    name: str
    train: ImageSet
    val: ImageSet
    test: ImageSet
    image_size: int | None
    """Side of the images on disk, None where they differ (a folder of photographs)."""
    channels: int
    augment: str
    """Name of the augmentation that suits these images."""
    note: str = ""
    """One line for the person: what split was made, and how."""

    @property
    def classes(self) -> LabelSpace:
        """Class names, the same for all three parts."""
        return self.train.classes

    def only(self, classes: LabelSpace) -> "Splits":
        """The same data with those classes alone."""
        return replace(self, train=self.train.only(classes), val=self.val.only(classes),
                       test=self.test.only(classes))
