"""What came out of a run, measured on the test images once, at the last epoch; until then on validation."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from refilled import evaluation
from refilled.data import Batches
from refilled.errors import UserError
from refilled.labels import Overlap
from refilled.methods import Stage
from refilled.models import Network, read_network
from refilled.runs.folder import RESULT, read_run_file
from refilled.runs.prepare import Prepared, place
from refilled.training import TrainSettings


@dataclass(frozen=True)
class Result:
    """Accuracies are shares from 0 to 1, on test images unless named otherwise."""

    method: str
    seed: int
    epochs: int
    accuracy: float
    """Top-1 accuracy of the classifier at the last epoch."""
    top5: float | None
    """None with five classes or fewer."""
    ncm: float
    """Accuracy of the nearest class mean in the student's embedding."""
    one_nn: float
    """Accuracy of the nearest training image in the student's embedding."""
    per_class: dict[str, float | None]
    """None for a class without test images."""
    val_accuracy: float | None
    """None where nothing was held out for validation."""
    test_images: int
    seconds: float
    """Training time, without loading and evaluation."""
    overlap: float | None
    """Share of the student's classes that the teacher knows; None without a teacher."""
    teacher_ncm: float | None
    """Accuracy of the nearest class mean in the teacher's embedding, on the student's classes."""
    out: str | None
    """The run folder."""
    silent: int = 0
    """Dimensions of the student's embedding that are the same for all test images."""
    student: Network | None = dataclasses.field(default=None, repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Everything but the network."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "student"}


def read_result(folder: Path, device: torch.device) -> Result:
    """The result of a finished run, with its student on the device."""
    try:
        return Result(**read_run_file(folder / RESULT), student=place(read_network(folder), device))
    except TypeError:
        raise UserError(f"{folder / RESULT} is damaged; delete it to evaluate the student again") from None


def embedding_accuracy(known: evaluation.Outputs, asked: evaluation.Outputs) -> tuple[float, float]:
    """Accuracies of the nearest class mean and the nearest known image, in one network's embedding."""
    classes = int(max(known.labels.max(), asked.labels.max())) + 1
    ncm = evaluation.nearest_class_mean(known.embeddings, known.labels, asked.embeddings, classes)
    one_nn = evaluation.nearest_neighbour(known.embeddings, known.labels, asked.embeddings)
    return (ncm == asked.labels).double().mean().item(), (one_nn == asked.labels).double().mean().item()


def measure(
    method: str,
    teacher: Network | None,
    student: Network,
    images: Prepared,
    settings: TrainSettings,
    seconds: float,
    overlap: Overlap | None,
    folder: Path | None,
) -> Result:
    """Read the test images, once, and the validation images where there are any."""
    dtype = settings.autocast_dtype(student.device)

    def outputs(network: Network, part: Batches) -> evaluation.Outputs:
        return evaluation.predict(network, part, autocast_dtype=dtype)

    test = outputs(student, images.test)
    val = outputs(student, images.val) if images.val is not None else None
    ncm, one_nn = embedding_accuracy(outputs(student, images.train), test)
    teacher_ncm = None
    if teacher is not None:
        teacher_ncm, _ = embedding_accuracy(outputs(teacher, images.train), outputs(teacher, images.test))
    classes = student.classes
    shares = evaluation.per_class(test.logits.argmax(dim=1), test.labels, len(classes))
    return Result(
        method=method,
        seed=settings.seed,
        epochs=settings.epochs,
        accuracy=evaluation.top_k(test.logits, test.labels),
        top5=evaluation.top_k(test.logits, test.labels, 5) if len(classes) > 5 else None,
        ncm=ncm,
        one_nn=one_nn,
        per_class=dict(zip(classes, shares)),
        val_accuracy=evaluation.top_k(val.logits, val.labels) if val is not None else None,
        test_images=len(test.labels),
        seconds=seconds,
        overlap=overlap.ratio if overlap is not None else None,
        teacher_ncm=teacher_ncm,
        out=str(folder) if folder is not None else None,
        silent=evaluation.silent_dimensions(test.embeddings),
        student=student,
    )


def validator(
    student: Network, images: Prepared, autocast_dtype: torch.dtype | None
) -> Callable[[Stage], dict[str, float]] | None:
    """How a stage is judged on the validation images; None where nothing was held out."""
    val = images.val
    if val is None:
        return None

    def validate(stage: Stage) -> dict[str, float]:
        outputs = evaluation.predict(student, val, autocast_dtype=autocast_dtype)
        if stage.judge == "embedding":
            known = evaluation.predict(student, images.train, autocast_dtype=autocast_dtype)
            return {"ncm": embedding_accuracy(known, outputs)[0]}
        return {"accuracy": evaluation.top_k(outputs.logits, outputs.labels)}

    return validate
