"""The teacher's embedding as it is: what can be had without training a student."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from refilled import evaluation
from refilled.methods import get_method
from refilled.runs.prepare import wanted_size
from refilled.runs.settings import sort_settings
from refilled.runs.shared import Shared
from refilled.training import Reporter

Classifier = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""(known embeddings [N, d], their labels [N], asked embeddings [M, d], classes) -> labels [M]"""

TEACHER_BASELINES: dict[str, Classifier] = {
    "teacher-1nn": lambda known, labels, asked, classes: evaluation.nearest_neighbour(known, labels, asked),
    "teacher-ncm": evaluation.nearest_class_mean,
    "teacher-lr": evaluation.logistic_regression,
}


def judge_teacher(
    baseline: str, teacher: Path, data: str, shared: Shared, device: torch.device, settings: dict[str, Any]
) -> dict[str, Any]:
    """Accuracy of a classifier on the frozen teacher's embeddings, for the student's classes.

    Args:
        baseline: one of ``TEACHER_BASELINES``.
        teacher: its run folder.
        data: the student's data.
        shared: images and teacher.
        device: where to compute.
        settings: of the student's data, and its seed.

    Returns:
        What goes into the ledger.
    """
    train_settings, data_settings, _ = sort_settings(get_method("student"), settings)
    splits = shared.splits(data, data_settings, train_settings.seed)
    network = shared.teacher(teacher, device)
    size = wanted_size(splits, data_settings, network)
    images = shared.images(splits, size, data_settings, train_settings, device, Reporter(), None)
    dtype = train_settings.autocast_dtype(device)
    known = evaluation.predict(network, images.train, autocast_dtype=dtype)
    classify = TEACHER_BASELINES[baseline]

    def accuracy(part: evaluation.Outputs) -> float:
        predicted = classify(known.embeddings, known.labels, part.embeddings, len(splits.classes))
        return (predicted == part.labels).double().mean().item()

    test = evaluation.predict(network, images.test, autocast_dtype=dtype)
    val = evaluation.predict(network, images.val, autocast_dtype=dtype) if images.val is not None else None
    return {
        "test_accuracy": accuracy(test),
        "val_accuracy": accuracy(val) if val is not None else None,
        "overlap": network.classes.overlap(splits.classes).ratio,
        "epochs": 0,
        "seconds": 0.0,
        "test_images": len(test.labels),
    }
