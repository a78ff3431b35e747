"""One run from beginning to end: data, teacher, student, training, evaluation, run folder."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from refilled import evaluation
from refilled.data import Batches, Splits
from refilled.errors import UserError
from refilled.files import write_json
from refilled.labels import Overlap
from refilled.methods import Method, Stage, get_method
from refilled.models import Network, read_network, save_network
from refilled.runs.folder import RESULT, open_run_folder, read_json
from refilled.runs.prepare import (
    Prepared,
    external_student,
    load_images,
    make_teacher,
    native_student,
    place,
    read_splits,
    wanted_size,
)  # fmt: skip
from refilled.runs.settings import sort_settings
from refilled.training import Reporter, TrainSettings, make_deterministic, make_reporter, pick_device, train


@dataclass(frozen=True)
class Result:
    """What came out of a run. Accuracies are shares from 0 to 1, on test images unless named otherwise."""

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
    per_class: dict[str, float]
    val_accuracy: float | None
    test_images: int
    seconds: float
    """Training time, without loading and evaluation."""
    overlap: float | None
    """Share of the student's classes that the teacher knows; None without a teacher."""
    teacher_ncm: float | None
    """Accuracy of the nearest class mean in the teacher's embedding, on the student's classes."""
    out: str | None
    """The run folder."""
    student: Network | None = dataclasses.field(default=None, repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Everything but the network."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "student"}


def distill(
    teacher: str | Path | Network | None,
    student: str | Path | Network,
    data: str | Path | Splits,
    method: str = "refilled",
    out: str | Path | None = None,
    *,
    resume: bool = False,
    progress: bool = True,
    **settings: Any,
) -> Result:
    """Train a student with the help of a teacher, whatever classes each of them knows.

    Args:
        teacher: a run folder, ``timm:NAME``, ``hf:FOLDER``, or a network; None for method ``student``.
        student: ``wrn-16-2``, ``mobilenet-0.5``, ``timm:NAME``, …, or a network that knows the data's classes.
        data: ``digits``, a folder of images, CIFAR-100's folder, or what :func:`refilled.data.open_data` returned.
        method: see :data:`refilled.methods.METHODS`.
        out: run folder to write; None: nothing is written.
        resume: go on with an interrupted run in ``out``.
        progress: show progress on standard error.
        settings: any field of :class:`refilled.training.TrainSettings`,
            :class:`refilled.runs.DataSettings`, or of the method's own settings.

    Returns:
        Accuracies on the test images, read once at the last epoch, and the student itself.
    """
    chosen = get_method(method)
    train_settings, data_settings, own_settings = sort_settings(chosen, settings)
    if chosen.needs_teacher and teacher is None:
        raise UserError(f"method {method} needs a teacher: a run folder, timm:NAME or hf:FOLDER")
    device = pick_device(train_settings.device)
    make_deterministic(train_settings.deterministic)
    reporter = make_reporter(progress)
    config = {
        "method": method,
        "teacher": describe_model(teacher) if chosen.needs_teacher else None,
        "student": describe_model(student),
        "data": data.name if isinstance(data, Splits) else str(data),
        "settings": {
            "train": dataclasses.asdict(train_settings),
            "data": dataclasses.asdict(data_settings),
            "method": dataclasses.asdict(own_settings),
        },
    }
    folder = Path(out) if out is not None else None
    splits = read_splits(data, data_settings, train_settings.seed)
    guide = make_teacher(teacher, device) if chosen.needs_teacher and teacher is not None else None
    learner = external_student(student, splits.classes, train_settings.seed)
    if folder is not None:
        open_run_folder(folder, config, resume)
        if (folder / RESULT).exists():
            reporter.line(f"{folder} is finished already")
            return Result(**read_json(folder / RESULT), student=read_network(folder).to(device))

    size = wanted_size(splits, data_settings, guide, learner)
    images = load_images(splits, size, data_settings, train_settings, device)
    if learner is None:
        learner = native_student(student, images, train_settings.seed)  # type: ignore[arg-type]
    learner = place(learner, device)
    overlap = guide.classes.overlap(learner.classes) if guide is not None else None
    if guide is not None and chosen.check is not None:
        chosen.check(guide, learner)
    for line in (*introduction(images, guide, learner, overlap), *images.notes, *learner.notes):
        reporter.line(line)

    seconds = _train(
        chosen, own_settings, guide, learner, images, train_settings, config, folder, resume, reporter
    )
    result = _judge(method, guide, learner, images, train_settings, seconds, overlap, folder)
    if folder is not None:
        save_network(learner, folder)
        write_json(folder / RESULT, result.to_json())
    return result


def describe_model(model: str | Path | Network | None) -> str | None:
    """A model in words, for ``config.json``."""
    return model.spec if isinstance(model, Network) else None if model is None else str(model)


def introduction(
    images: Prepared, teacher: Network | None, student: Network, overlap: Overlap | None
) -> list[str]:
    """What is about to happen, in a line or two."""
    parts = [f"{len(images.train.labels)} training"]
    parts += [
        f"{len(part.labels)} {name}"
        for name, part in (("validation", images.val), ("test", images.test))
        if part
    ]
    lines = [
        f"{images.name}: {len(images.classes)} classes, {', '.join(parts)} images of {images.size} pixels"
    ]
    if teacher is not None:
        lines.append(f"teacher {teacher.spec} knows {len(teacher.classes)} classes: {overlap}")
    return lines


def _train(
    method: Method,
    own_settings: Any,
    teacher: Network | None,
    student: Network,
    images: Prepared,
    settings: TrainSettings,
    config: dict[str, Any],
    folder: Path | None,
    resume: bool,
    reporter: Reporter,
) -> float:
    dtype = settings.autocast_dtype(images.train.labels.device)
    stages = method.stages(teacher, student, images.train, own_settings, settings.epochs)  # type: ignore[arg-type]

    def validate(stage: Stage) -> dict[str, float]:
        assert images.val is not None
        if stage.judge == "embedding":
            return {"ncm": embedding_accuracy(student, images.train, images.val, dtype)[0]}
        outputs = evaluation.predict(student, images.val, autocast_dtype=dtype)
        return {"accuracy": evaluation.top_k(outputs.logits, outputs.labels)}

    return train(
        stages, student, images.train, settings, plan=json.dumps(config, sort_keys=True), folder=folder,
        resume=resume, validate=validate if images.val is not None else None, reporter=reporter,
    )  # fmt: skip


def embedding_accuracy(
    network: Network, train_images: Batches, test_images: Batches, dtype: torch.dtype | None = None
) -> tuple[float, float]:
    """Accuracies of NCM and 1NN in a network's embedding."""
    known = evaluation.predict(network, train_images, autocast_dtype=dtype)
    asked = evaluation.predict(network, test_images, autocast_dtype=dtype)
    classes = int(known.labels.max()) + 1
    ncm = evaluation.nearest_class_mean(known.embeddings, known.labels, asked.embeddings, classes)
    one_nn = evaluation.nearest_neighbour(known.embeddings, known.labels, asked.embeddings)
    return tuple((found == asked.labels).double().mean().item() for found in (ncm, one_nn))  # type: ignore[return-value]


def _judge(
    method: str,
    teacher: Network | None,
    student: Network,
    images: Prepared,
    settings: TrainSettings,
    seconds: float,
    overlap: Overlap | None,
    folder: Path | None,
) -> Result:
    """Read the test images, once."""
    dtype = settings.autocast_dtype(images.train.labels.device)
    nan = float("nan")
    val = evaluation.predict(student, images.val, autocast_dtype=dtype) if images.val is not None else None
    test = evaluation.predict(student, images.test, autocast_dtype=dtype) if images.test is not None else None
    ncm, one_nn = embedding_accuracy(student, images.train, images.test, dtype) if images.test else (nan, nan)
    classes = student.classes
    shares = evaluation.per_class(test.logits.argmax(1), test.labels, len(classes)) if test else []
    return Result(
        method=method,
        seed=settings.seed,
        epochs=settings.epochs,
        accuracy=evaluation.top_k(test.logits, test.labels) if test else nan,
        top5=evaluation.top_k(test.logits, test.labels, 5) if test and len(classes) > 5 else None,
        ncm=ncm,
        one_nn=one_nn,
        per_class=dict(zip(classes, shares)),
        val_accuracy=evaluation.top_k(val.logits, val.labels) if val else None,
        test_images=len(test.labels) if test else 0,
        seconds=seconds,
        overlap=overlap.ratio if overlap else None,
        teacher_ncm=embedding_accuracy(teacher, images.train, images.test, dtype)[0]
        if teacher is not None and images.test is not None
        else None,
        out=str(folder) if folder else None,
        student=student,
    )
