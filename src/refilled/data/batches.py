"""Batches of a training set: shuffled, augmented and converted on the device."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from refilled.data.augment import Show, draw_views, show, unit_floats, view_count
from refilled.data.randomness import mixed_seed, seeded_generator
from refilled.data.source import Resident, Source
from refilled.errors import UserError

_OF_FIXED_VIEWS = mixed_seed(0x76696577)  # apart from the seeds of any epoch


@dataclass(slots=True)
class Batch:
    """What one training step sees."""

    images: Tensor
    """float32 [B + U, C, H, W] from 0 to 1: those with labels, then those without, if there are any"""
    labels: Tensor
    """int64 [B]"""
    rows: Tensor
    """int64 [B + U], which images of the set they are"""
    views: Tensor | None = None
    """int64 [B + U], which views of them are seen; None where views are endless"""
    answers: Tensor | None = None
    """[B + U, width] of the network that the stage asks, for these views, where they are known already"""
    progress: Tensor | None = None
    """float32 [], how much of the stage's epochs lies behind: 0 at its start; None outside of training"""

    def __len__(self) -> int:
        """Images with labels."""
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class Plan:
    """All draws of an epoch: which images each step sees, and which view of each."""

    rows: Tensor
    """int64 [steps, B + U]"""
    views: Tensor
    """int64 [steps, B + U], or float32 [steps, B + U, 5] where views are endless"""

    def __len__(self) -> int:
        return len(self.rows)


class Batches:
    """A set of images, dealt out in shuffled, augmented batches on a device.

    Every batch has exactly ``batch_size`` images (or all there are, if those are fewer): the last one of
    an epoch is filled up with the first images of the same shuffle. So every image is seen in every epoch,
    batch statistics never come from a handful of images, and shapes never change, which captured graphs
    and compiled steps need.

    Args:
        images: uint8 [N, C, side, side] on the device where training happens, or another source of them;
            more than N, if the others have no labels.
        labels: int64 [N], on the same device.
        batch_size: B, cut to N.
        augment: name of an augmentation, see :func:`refilled.data.augment.augment`.
        seed: decides the shuffles and augmentations of all epochs.
        views: each image is only ever seen in this many views, drawn once; None: in all there are.
        unlabelled: U, images without a label in a step beside the others, cut to those there are; an epoch
            is over when every image with a label was seen.
    """

    def __init__(
        self,
        images: Tensor | Source,
        labels: Tensor,
        batch_size: int,
        augment: str = "none",
        seed: int = 0,
        views: int | None = None,
        unlabelled: int = 0,
    ):
        self.source: Source = Resident(images) if isinstance(images, Tensor) else images
        count, _, *side = self.source.shape
        if len(labels) == 0 or count < len(labels) or (count > len(labels)) != (unlabelled > 0):
            raise UserError(f"batches need images and as many labels, not {count} and {len(labels)}")
        if self.source.device != labels.device:
            raise UserError(
                f"images are on {self.source.device} and labels on {labels.device}; move one of them"
            )
        if batch_size < 1:
            raise UserError(f"a batch has at least 1 image, not {batch_size}")
        if views is not None and views < 1:
            raise UserError(f"an image is seen in at least 1 view, not {views}")
        self.labels = labels
        self.batch_size = min(batch_size, len(labels))
        self.unlabelled = min(unlabelled, count - len(labels))
        """Images without a label in a step."""
        self.augment = augment
        self.seed = seed
        self._side = (side[0], side[1])
        self._fixed: Tensor | None = None
        self.views = view_count(augment, self._side)
        """Number of different views in which an image is seen; None where they are endless."""
        if views is not None and (self.views is None or views < self.views):
            self.views = views
            generator = seeded_generator(seed, _OF_FIXED_VIEWS, device=labels.device)
            self._fixed = self._draw(count * views, generator).unflatten(0, (count, views))

    def __len__(self) -> int:
        """Steps per epoch."""
        return -(-len(self.labels) // self.batch_size)

    @property
    def fixed_views(self) -> bool:
        """Whether each image is only seen in some views, drawn by the seed."""
        return self._fixed is not None

    @property
    def device(self) -> torch.device:
        """Where batches are."""
        return self.labels.device

    @property
    def asked(self) -> int:
        """Images of an epoch, those without labels too."""
        return len(self) * (self.batch_size + self.unlabelled)

    def plan(self, number: int, salt: int = 0, group: int = 1) -> Plan:
        """The draws of one epoch; a function of (seed, salt, number, group) alone, so that a resumed run has
        the same ones.

        Args:
            number: which epoch.
            salt: tells apart what is trained with the same seed, such as the stages of a method.
            group: images of a class that stand side by side in the shuffle, as far as they go.
        """
        generator = seeded_generator(self.seed, salt, number, device=self.device)
        shuffled = torch.randperm(len(self.labels), generator=generator, device=self.device)
        if group > 1:
            shuffled = grouped(shuffled, self.labels, group, generator)
        count = len(self) * self.batch_size
        rows = torch.cat([shuffled, shuffled[: count - len(shuffled)]]).view(len(self), -1)
        if self.unlabelled:
            rows = torch.cat([rows, self._unlabelled_rows(generator)], dim=1)
        if self._fixed is None:
            views = self._draw(rows.numel(), generator)
        else:
            most = self._fixed.shape[1]
            views = torch.randint(0, most, (rows.numel(),), generator=generator, device=self.device)
        return Plan(rows, views.unflatten(0, (len(self), -1)))

    def _unlabelled_rows(self, generator: torch.Generator) -> Tensor:
        """Rows [steps, U]; none comes a second time before all have come once."""
        first, wanted = len(self.labels), len(self) * self.unlabelled
        there = self.source.shape[0] - first
        times = -(-wanted // there)
        shuffles = [torch.randperm(there, generator=generator, device=self.device) for _ in range(times)]
        return first + torch.cat(shuffles)[:wanted].view(len(self), -1)

    def epoch(self, number: int, salt: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, as :meth:`plan` has them."""
        plan = self.plan(number, salt)
        for raw, rows, views in zip(self.source.stream(plan.rows), plan.rows, plan.views):
            yield self.assemble(raw, rows, views)

    def assemble(self, raw: Tensor, rows: Tensor, views: Tensor, by: Show = show) -> Batch:
        """A batch from the bytes of its images [B + U, C, side, side], their rows [B + U] and their views."""
        images = self.shown(raw, rows, views, by)
        labels = self.labels[rows[: self.batch_size]] if self.unlabelled else self.labels[rows]
        return Batch(images, labels, rows, views if self.views is not None else None)

    def shown(self, raw: Tensor, rows: Tensor, views: Tensor, by: Show = show) -> Tensor:
        """Views [B] of the images of any rows [B], from their bytes: float32 [B, C, side, side]."""
        return by(raw, self.augment, views if self._fixed is None else self._fixed[rows, views])

    def shows_the_same(self, other: "Batches") -> bool:
        """Whether any row and view is the same picture in both, whatever their order."""
        if self.source is not other.source or self.augment != other.augment:
            return False
        if self._fixed is None or other._fixed is None:
            return self._fixed is other._fixed
        return torch.equal(self._fixed, other._fixed)

    def ordered(self, batch_size: int | None = None) -> Iterator[Batch]:
        """All images once, as they are and in order; the last batch may be smaller. For evaluation."""
        size = batch_size or self.batch_size
        every = torch.arange(len(self.labels))
        whole = len(every) // size * size
        parts = [every[:whole].view(-1, size), every[None, whole:]]
        for part in parts:
            if part.numel():
                for raw, rows in zip(self.source.stream(part), part.to(self.device)):
                    yield Batch(unit_floats(raw), self.labels[rows], rows)

    def _draw(self, count: int, generator: torch.Generator) -> Tensor:
        return draw_views(self.augment, count, self._side, generator, self.device)


def grouped(rows: Tensor, labels: Tensor, group: int, generator: torch.Generator) -> Tensor:
    """A shuffle in which so many images of a class stand side by side.

    Args:
        rows: int64 [N], any shuffle of all rows.
        labels: int64 [N], of the rows in their own order.
        group: images of a class; what is left of a class is a smaller group.
        generator: decides the order of the groups.

    Returns:
        int64 [N], the same rows.
    """
    own, by_class = labels[rows].sort(stable=True)
    first = torch.searchsorted(own, own)  # of its class
    place = torch.arange(len(rows), device=rows.device) - first
    begins = place % group == 0
    drawn = torch.rand(len(rows), generator=generator, device=rows.device)
    of_group = drawn[begins.cumsum(0) - 1]
    return rows[by_class][of_group.sort(stable=True).indices]
