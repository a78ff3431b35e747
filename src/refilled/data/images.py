"""Labelled images, before they are pixels on a device: what every reader returns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from refilled.errors import UserError
from refilled.labels import LabelSpace

Progress = Callable[[int, int], None]
"""Called with (done, total) while images are decoded."""


class Pixels(Protocol):
    """Images that can be turned into one uint8 tensor: held in memory, or files on disk."""

    channels: int
    """3 for colour, 1 for gray."""

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
        mapping = torch.full((len(self.classes),), -1, dtype=torch.int64)
        for new, name in enumerate(classes):
            old = self.classes.label(name)
            if mapping[old] >= 0:
                twin = classes[int(mapping[old])]
                raise UserError(f"{twin!r} and {name!r} are one class here; name it once")
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
    unlabelled: ImageSet | None = None
    """Images for training whose labels are not read; see :func:`refilled.data.open_unlabelled`."""

    @property
    def classes(self) -> LabelSpace:
        """Class names, the same for all three parts."""
        return self.train.classes

    def only(self, classes: LabelSpace) -> "Splits":
        """The same data with those classes alone."""
        return replace(
            self, train=self.train.only(classes), val=self.val.only(classes), test=self.test.only(classes)
        )


def load_set(
    image_set: ImageSet, size: int | None, progress: Progress | None = None
) -> tuple[Tensor, Tensor, int]:
    """The pixels of a set with the labels that belong to them.

    Returns:
        Images uint8 [M, channels, size, size], labels int64 [M], and how many of the N images were
        skipped because they could not be read (N - M; always 0 unless skipping was asked for).
    """
    images, rows = image_set.pixels.load(size, progress)
    skipped = len(image_set) - len(rows)
    return images, image_set.labels[rows] if skipped else image_set.labels, skipped


def check_trainable(images: ImageSet | Tensor, classes: LabelSpace, where: str, kind: str = "image") -> None:
    """Refuses a training part in which a class has fewer than two images.

    Args:
        images: a set, or its labels int64 [N].
        classes: every one of them must have two images.
        where: what the person calls the data; a class is named ``where/class``.
        kind: what is counted, e.g. ``training image``.
    """
    labels = images.labels if isinstance(images, ImageSet) else images
    counts = torch.bincount(labels, minlength=len(classes)).tolist()
    short = [label for label, count in enumerate(counts) if count < 2]
    if short:
        count = f"1 {kind}" if counts[short[0]] else f"no {kind}s"
        more = f" (too few in {len(short) - 1} more classes)" if len(short) > 1 else ""
        raise UserError(f"{where}/{classes[short[0]]} has {count}; at least 2 are needed to compare{more}")
