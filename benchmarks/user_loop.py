"""The training that one writes first in PyTorch, for ``training.py`` to measure against.

Pictures are PIL images in memory, augmented one by one in the workers of a DataLoader (pad, crop, flip,
normalise). Teacher and student run forward in float32 with the usual layout of memory, kernels are launched
one by one, and the losses are written down as the paper has them: stage 1 with a mask over all tuples, stage
2 with the classes of the batch picked out. TF32 is left as PyTorch has it (convolutions yes, products of
matrices no). Losses, temperatures and optimizer are those of the library's defaults.
"""

import os
import random
from collections.abc import Callable, Iterable
from itertools import islice

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler

from brute_force import brute_force
from refilled.models import Network

TAU_COMPARISON = 0.1  # stage 1, both models
TAU_TEACHER, TAU_STUDENT, STRENGTH = 2.0, 1.0, 2.0  # stage 2
MOMENTUM, WEIGHT_DECAY = 0.9, 5e-4


class Pictures(Dataset):
    """PIL images in memory, each made into a normalised tensor when it is asked for.

    Args:
        images: uint8 [N, 3, side, side].
        labels: int64 [N].
        mean: of each channel, for pixels from 0 to 1.
        std: likewise.
        augment: shift by up to an eighth of the side, and mirror one of two.
    """

    def __init__(
        self, images: Tensor, labels: Tensor, mean: Iterable[float], std: Iterable[float], augment: bool
    ):
        self.images = [Image.fromarray(pixels) for pixels in images.cpu().permute(0, 2, 3, 1).numpy()]
        self.labels = labels.tolist()
        self.mean, self.std = np.array([*mean], dtype=np.float32), np.array([*std], dtype=np.float32)
        self.augment = augment

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index]
        if self.augment:
            image = shifted_and_mirrored(image)
        pixels = (np.asarray(image, dtype=np.float32) / 255 - self.mean) / self.std
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))), self.labels[index]


def shifted_and_mirrored(image: Image.Image) -> Image.Image:
    """The usual padded random crop, and a flip of one in two."""
    width, height = image.size
    pad = width // 8
    left, top = random.randint(0, 2 * pad), random.randint(0, 2 * pad)
    image = ImageOps.expand(image, border=pad).crop((left, top, left + width, top + height))
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image


def make_loader(
    pictures: Pictures, batch_size: int, workers: int, device: torch.device, steps: int | None = None
) -> DataLoader:
    """A loader whose epochs are ``steps`` shuffled batches, or (None) all pictures in order."""
    sampler = None
    if steps is not None:
        sampler = RandomSampler(pictures, num_samples=steps * batch_size)
    return DataLoader(
        pictures,
        batch_size,
        sampler=sampler,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=device.type == "cuda",
    )


def usual_workers() -> int:
    """One for each core, and not more than eight."""
    return min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


# --- losses -------------------------------------------------------------------------------------------


def alone_loss(student: Network) -> Callable[[Tensor, Tensor], Tensor]:
    """Cross-entropy."""

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(student.head(student.embed_prepared(images)), labels)

    return loss


def embedding_loss(student: Network, teacher: Network) -> Callable[[Tensor, Tensor], Tensor]:
    """Stage 1: all tuples, masked."""

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            teacher_z = teacher.embed_prepared(images)
        student_z = student.embed_prepared(images)
        return brute_force(
            student_z, teacher_z, labels, tau_student=TAU_COMPARISON, tau_teacher=TAU_COMPARISON
        )

    return loss


def classifier_loss(
    student: Network, teacher: Network, centres: Tensor
) -> Callable[[Tensor, Tensor], Tensor]:
    """Stage 2: cross-entropy, and the classes of the batch compared with the teacher's class centres."""
    directions = F.normalize(centres, dim=1)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            teacher_z = teacher.embed_prepared(images)
            scores = teacher_z @ directions.T
            trust = head_weights(teacher.head(teacher_z))
        logits = student.head(student.embed_prepared(images))
        present = labels.unique()
        log_teacher = F.log_softmax(scores[:, present] / TAU_TEACHER, dim=1)
        log_student = F.log_softmax(logits[:, present] / TAU_STUDENT, dim=1)
        divergence = (log_teacher.exp() * (log_teacher - log_student)).sum(dim=1)
        return F.cross_entropy(logits, labels) + STRENGTH * (trust * divergence).mean()

    return loss


def head_weights(logits: Tensor) -> Tensor:
    """How sure the teacher's head is of each image: 0 for the least sure of the batch, 1 for the surest."""
    weights = 2 * torch.sigmoid(F.log_softmax(logits, dim=1).max(dim=1).values)
    return (weights - weights.min()) / (weights.max() - weights.min())


@torch.no_grad()
def class_centres(teacher: Network, loader: DataLoader, classes: int, device: torch.device) -> Tensor:
    """Mean embedding [classes, dim] of each class, over pictures that are not augmented."""
    batches = [(teacher.embed_prepared(images.to(device)), labels.to(device)) for images, labels in loader]
    embeddings, labels = (torch.cat(parts) for parts in zip(*batches))
    return torch.stack([embeddings[labels == label].mean(dim=0) for label in range(classes)])


# --- loops --------------------------------------------------------------------------------------------


class UserLoop:
    """Trains a student, an epoch of the loader at a time.

    Args:
        student: in training mode, on the device.
        parameters: what is trained.
        loss: from images and labels to what is minimised.
        loader: of normalised and augmented images.
        lr: learning rate.
    """

    def __init__(
        self,
        student: Network,
        parameters: list[torch.nn.Parameter],
        loss: Callable[[Tensor, Tensor], Tensor],
        loader: DataLoader,
        lr: float,
    ):
        self.student, self.loss, self.loader = student, loss, loader
        self.optimizer = torch.optim.SGD(
            parameters, lr=lr, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, nesterov=True
        )

    def run(self, most: int | None = None) -> Tensor:
        """Train for an epoch, or the first few steps of one; returns the last loss, still on the device."""
        self.student.train()
        device = self.student.device
        for images, labels in islice(self.loader, most):
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            loss = self.loss(images, labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.detach()


@torch.no_grad()
def accuracy(network: Network, loader: DataLoader) -> float:
    """Share of the loader's pictures that the network names rightly."""
    network.eval()
    right = seen = 0
    for images, labels in loader:
        images, labels = (part.to(network.device, non_blocking=True) for part in (images, labels))
        right += (network.head(network.embed_prepared(images)).argmax(dim=1) == labels).sum().item()
        seen += len(labels)
    return right / seen
