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
    """What the student sees of a batch: its B images with labels, then its U without, then M mixtures, as
    many as there are labels or none; S = B + U + M."""

    images: Tensor
    """[S, C, H, W]: one pass for all, so that batch statistics are of all, as they are kept"""
    labels: Tensor
    """int64 [B]"""
    shares: Tensor | None = None
    """[M], of an image in its mixture; the rest is the image before it in the batch, whose order is random"""

    def parts(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Of values [S, ...], those of images with labels and of their mixtures [B + M, ...], and those of
        images without labels [U, ...]."""
        labelled, mixed = len(self.labels), 0 if self.shares is None else len(self.shares)
        own, others, mixtures = values.split([labelled, len(values) - labelled - mixed, mixed])
        return torch.cat([own, mixtures]) if mixed else own, others

    def cross_entropy(self, logits: Tensor) -> Tensor:
        """Mean over images with labels and mixtures, for logits [S, classes]; a scalar."""
        known, _ = self.parts(logits)
        own = F.cross_entropy(known[: len(self.labels)].float(), self.labels)
        if self.shares is None:
            return own
        mixed = known[len(self.labels) :].float()
        left = F.cross_entropy(mixed, self.labels, reduction="none")
        right = F.cross_entropy(mixed, self.labels.roll(1), reduction="none")
        return (own + self._blend(left, right).mean()) / 2

    def by_class(self, values: Tensor) -> Tensor:
        """For each image with a label and each mixture [B + M], the value of its class or classes, given
        those of all [C]."""
        own = values[self.labels]
        return own if self.shares is None else torch.cat([own, self._blend(own, own.roll(1))])

    def teacher_embeddings(self, teacher: Network, batch: Batch) -> Tensor:
        """The frozen teacher's [S, d']: of images as :func:`embed` has them, of mixtures asked now."""
        own = embed(teacher, batch)
        if self.shares is None:
            return own
        with torch.no_grad():
            return torch.cat([own, teacher.embed(self.images[len(own) :]).to(own.dtype)])

    def _blend(self, left: Tensor, right: Tensor) -> Tensor:
        assert self.shares is not None, "there are mixtures"
        return self.shares * left + (1 - self.shares) * right


def show(batch: Batch, mixtures: bool) -> Seen:
    """The images of a batch, with mixtures of those with labels below them if there are to be any."""
    if not mixtures:
        return Seen(batch.images, batch.labels)
    shares, known = torch.rand(len(batch), device=batch.images.device), batch.images[: len(batch)]
    of_pixels = shares[:, None, None, None]
    mixed = of_pixels * known + (1 - of_pixels) * known.roll(1, dims=0)
    return Seen(torch.cat([batch.images, mixed]), batch.labels, shares)
