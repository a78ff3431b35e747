"""One run from beginning to end: data, teacher, student, training, evaluation, run folder."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from refilled import evaluation
from refilled.data import Splits
from refilled.errors import UserError
from refilled.files import write_json
from refilled.labels import Overlap
from refilled.methods import Stage, get_method
from refilled.models import Network, save_network
from refilled.runs.folder import RESULT, check_run_folder, start_run_folder
from refilled.runs.prepare import (
    Prepared,
    check_channels,
    load_images,
    make_student,
    make_teacher,
    place,
    read_splits,
    starts_fresh,
    wanted_size,
)
from refilled.runs.result import Result, embedding_accuracy, measure, read_result
from refilled.runs.settings import sort_settings
from refilled.training import make_deterministic, make_reporter, pick_device, train


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
        student: ``wrn-16-2``, ``mobilenet-0.5``, ``timm:NAME``, …, or a network that knows the data's
            classes; a network is trained in place.
        data: ``digits``, a folder of images, CIFAR-100's folder, or what
            :func:`refilled.data.open_data` returned.
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
    if teacher is student and isinstance(student, Network):
        raise UserError("teacher and student are one and the same network; give a copy of it")
    what = {
        k: v
        for k, v in dataclasses.asdict(train_settings).items()
        if k not in ("device", "checkpoint_seconds", "step", "compile")
    }
    config = {
        "method": method,
        "teacher": describe_model(teacher) if chosen.needs_teacher else None,
        "student": describe_model(student),
        "data": data.name if isinstance(data, Splits) else str(Path(data)),
        "settings": {
            "train": what,
            "data": dataclasses.asdict(data_settings),
            "method": dataclasses.asdict(own_settings),
        },
    }
    folder = Path(out).expanduser() if out is not None else None
    if folder is not None:
        check_run_folder(folder, config, resume)
        if (folder / RESULT).exists():
            reporter.line(f"{folder} is finished already")
            return read_result(folder, device)

    # Everything that may be refused is looked at before any image is decoded.
    splits = read_splits(data, data_settings, train_settings.seed)
    guide = make_teacher(teacher, device) if chosen.needs_teacher and teacher is not None else None
    learner = make_student(student, splits, data_settings, train_settings.seed)
    overlap = guide.classes.overlap(learner.classes) if guide is not None else None
    if guide is not None and chosen.check is not None:
        chosen.check(guide, learner)
    check_channels(splits, teacher=guide, student=learner)
    size = wanted_size(splits, data_settings, guide, learner)
    images = load_images(splits, size, data_settings, train_settings, device, reporter.loading)
    if starts_fresh(student):
        learner.normalise_by(images.mean, images.std)
    learner = place(learner, device)
    stages = chosen.stages(guide, learner, images.train, own_settings, train_settings.epochs)  # type: ignore[arg-type]
    for line in (*introduction(images, guide, overlap), *learner.notes):
        reporter.line(line)

    if folder is not None:
        start_run_folder(folder, config, size)
    seconds = train(
        stages,
        learner,
        images.train,
        train_settings,
        plan=json.dumps(config, sort_keys=True),
        folder=folder,
        resume=resume,
        validate=validator(learner, images, train_settings.autocast_dtype(device)),
        reporter=reporter,
    )
    result = measure(method, guide, learner, images, train_settings, seconds, overlap, folder)
    if folder is not None:
        save_network(learner, folder)
        write_json(folder / RESULT, result.to_json())
    return result


def describe_model(model: str | Path | Network | None) -> str | None:
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
    lines += images.notes
    if teacher is not None:
        lines.append(f"teacher {teacher.spec} knows {len(teacher.classes)} classes: {overlap}")
    return lines


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
