"""Mixtures: images of a batch blended with each other, of which few images make endlessly many.

Zhang et al., mixup, 2018: two images blended in a share that is drawn anew, and their labels in the same
share. A teacher answers for them as for any image (Beyer et al., Knowledge distillation: A good teacher is
patient and consistent, 2022), whatever classes it knows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from refilled.data import Batch
from refilled.methods.stage import embed
from refilled.models import Network


@dataclass(frozen=True)
class Seen:
    """What the student sees of a batch: its images and, below them, as many mixtures, or none."""

    images: Tensor
    """[B or 2B, C, H, W]: one pass for both, so that batch statistics are of both, as they are kept"""
    labels: Tensor
    """int64 [B], of the images"""
    shares: Tensor | None = None
    """[B], of an image in its mixture; the rest is the image before it in the batch, whose order is random"""

    def cross_entropy(self, logits: Tensor) -> Tensor:
        """Mean over images and mixtures, for logits [B or 2B, classes]; a scalar."""
        own = F.cross_entropy(logits[: len(self.labels)].float(), self.labels)
        if self.shares is None:
            return own
        mixed = logits[len(self.labels) :].float()
        left = F.cross_entropy(mixed, self.labels, reduction="none")
        right = F.cross_entropy(mixed, self.labels.roll(1), reduction="none")
        return (own + self._blend(left, right).mean()) / 2

    def by_class(self, values: Tensor) -> Tensor:
        """For each image and mixture [B or 2B], the value of its class or classes, given those of all [C]."""
        own = values[self.labels]
        return own if self.shares is None else torch.cat([own, self._blend(own, own.roll(1))])

    def teacher_embeddings(self, teacher: Network, batch: Batch) -> Tensor:
        """The frozen teacher's [B or 2B, d']: of images as :func:`embed` has them, of mixtures asked now."""
        own = embed(teacher, batch)
        if self.shares is None:
            return own
        with torch.no_grad():
            return torch.cat([own, teacher.embed(self.images[len(own) :]).to(own.dtype)])

    def _blend(self, left: Tensor, right: Tensor) -> Tensor:
        assert self.shares is not None, "there are mixtures"
        return self.shares * left + (1 - self.shares) * right


def show(batch: Batch, mixtures: bool) -> Seen:
    """The images of a batch, with mixtures below them if there are to be any."""
    if not mixtures:
        return Seen(batch.images, batch.labels)
    shares = torch.rand(len(batch.labels), device=batch.images.device)
    of_pixels = shares[:, None, None, None]
    mixed = of_pixels * batch.images + (1 - of_pixels) * batch.images.roll(1, dims=0)
    return Seen(torch.cat([batch.images, mixed]), batch.labels, shares)
