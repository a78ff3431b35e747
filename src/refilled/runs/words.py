"""What a run says before it trains, and what seems wrong after it."""

import os
from pathlib import Path
from typing import Any

import torch

from refilled.data.pixels import worker_count
from refilled.labels import Overlap
from refilled.methods.refilled_settings import ComparisonSettings, RefilledSettings
from refilled.models import Network
from refilled.runs.prepare import Prepared
from refilled.runs.result import Result
from refilled.training import TrainSettings, bfloat16_would_pay

_SMALLEST_MEASURED = 16
"""Images of a batch in which four of a class side by side were seen to help (results/groups-few.md)."""


def hints(device: torch.device, settings: TrainSettings) -> list[str]:
    """What would make it faster here, for a person to decide."""
    hints = []
    if settings.precision == "auto" and bfloat16_would_pay(device):
        hints.append("this CPU has units for bfloat16: --precision bfloat16 takes about half the time")
    cores, load = worker_count(), os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if device.type == "cpu" and torch.get_num_threads() > 1 and load >= cores:
        hints.append(
            f"this machine is busy (load {load:.1f} on {cores} cores), and threads that wait for each other "
            f"are slow then: OMP_NUM_THREADS=1 may be many times faster"
        )
    return hints


def advise_groups(own: Any, batch_size: int, classes: int) -> str | None:
    """What a person should know where hardly two images of a class meet in a batch, or None.

    Args:
        own: settings of the method.
        batch_size: images of a step.
        classes: of the student.
    """
    compares = isinstance(own, ComparisonSettings) and getattr(own, "embedding_share", 1) != 0
    if not compares or own.group is not None or not _SMALLEST_MEASURED <= batch_size <= classes:
        return None
    return (
        f"in a batch of {batch_size} an image meets {(batch_size - 1) / classes:.1f} others of its class, of "
        f"{classes}, and without one there is nothing to compare: --set group=4 puts four side by side "
        "(results/stage-1-groups.md)"
    )


def describe(model: str | Path | Network | None) -> str | None:
    """A model in words, for ``config.json``."""
    return model.spec if isinstance(model, Network) else None if model is None else str(model)


def introduction(images: Prepared, teacher: Network | None, overlap: Overlap | None) -> list[str]:
    """What is about to happen, in a few lines."""
    parts = {"training": images.train, "validation": images.val, "test": images.test}
    counts = ", ".join(f"{len(part.labels)} {name}" for name, part in parts.items() if part is not None)
    batch = f"{images.train.batch_size} to a batch"
    lines = [
        f"{images.name}: {len(images.classes)} classes, {counts} images of {images.size} pixels, {batch}"
    ]
    if images.train.unlabelled:
        count = images.train.source.shape[0] - len(images.train.labels)
        lines.append(f"beside them {count} images without labels, {images.train.unlabelled} to a batch")
    lines += images.notes
    if teacher is not None:
        lines.append(f"teacher {teacher.spec} knows {len(teacher.classes)} classes: {overlap}")
    return lines


def last_words(result: Result, dim: int, settings: TrainSettings, own: Any) -> list[str]:
    """What a person should know of a student that is not well.

    Args:
        result: of the run.
        dim: of the student's embedding.
        settings: of its training.
        own: settings of the method.
    """
    if 2 * result.silent <= dim or result.test_images < 2:
        return []
    without = ", or --set embedding_share=0" if isinstance(own, RefilledSettings) else ""
    return [
        f"{result.silent} of the {dim} dimensions of the student's embedding are the same for all test "
        f"images, most likely because its steps were too large: try --lr {settings.first_lr / 3:.2g} instead "
        f"of {settings.first_lr:g}{without}"
    ]
