"""One run from beginning to end: data, teacher, student, training, evaluation, run folder."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from refilled import evaluation
from refilled.data import Splits
from refilled.data.pixels import worker_count
from refilled.errors import UserError
from refilled.files import write_json
from refilled.labels import LabelSpace, Overlap
from refilled.methods import Stage, get_method
from refilled.methods.imitation import check_unlabelled
from refilled.methods.keeping import (
    all_classes,
    calibrate,
    check_keeping,
    columns_of,
    is_matched_to_centres,
    keeping_stages,
    level,
)
from refilled.methods.refilled_settings import RefilledSettings
from refilled.methods.shared_head import check_head
from refilled.models import Network, save_network
from refilled.runs.facts import check_same_data, data_facts
from refilled.runs.folder import CONFIG, RESULT, begun_run, check_run_folder, start_run_folder
from refilled.runs.prepare import (
    Prepared,
    check_channels,
    make_student,
    place,
    starts_fresh,
    starts_trained,
    wanted_size,
)
from refilled.runs.result import Result, embedding_accuracy, measure, read_result
from refilled.runs.settings import DataSettings, sort_settings, what_settings
from refilled.runs.shared import Shared
from refilled.training import (
    TRAINED_LR,
    Reporter,
    Training,
    TrainSettings,
    bfloat16_would_pay,
    make_deterministic,
    pick_device,
    training,
)


class Run:
    """A run that is ready to train; everything that can be refused has been, before an image is decoded.

    Args:
        teacher, student, data, method, out, resume, settings: see :func:`refilled.distill`.
        reporter: shows progress.
        shared: what it has in common with other runs.
    """

    def __init__(
        self,
        teacher: str | Path | Network | None,
        student: str | Path | Network,
        data: str | Path | Splits,
        method: str,
        out: str | Path | None,
        *,
        resume: bool,
        reporter: Reporter,
        shared: Shared,
        **settings: Any,
    ):
        chosen = get_method(method)
        self.settings, data_settings, self.own_settings = sort_settings(chosen, settings)
        gently = self.settings.lr is None and (chosen.takes_over or starts_trained(student))
        if gently:
            begun = begun_run(out).get("settings", {}).get("train", {}) if resume else {}
            self.settings = replace(self.settings, lr=begun.get("lr", TRAINED_LR))
        keeps = self.settings.keep_teacher_classes
        if (chosen.needs_teacher or keeps) and teacher is None:
            what = f"method {method}" if chosen.needs_teacher else "--keep-teacher-classes"
            raise UserError(f"{what} needs a teacher: a run folder, timm:NAME or hf:FOLDER")
        if teacher is student and isinstance(student, Network):
            raise UserError("teacher and student are one and the same network; give a copy of it")
        self.method, self.resume, self.reporter, self.shared = method, resume, reporter, shared
        self.folder = Path(out).expanduser() if out is not None else None
        device = pick_device(self.settings.device)
        make_deterministic(self.settings.deterministic)
        config = {
            "method": method,
            "teacher": _describe(teacher) if chosen.needs_teacher or keeps else None,
            "student": _describe(student),
            "data": data.name if isinstance(data, Splits) else str(Path(data)),
            "settings": what_settings(self.settings, data_settings, self.own_settings),
        }
        self.plan = json.dumps(config, sort_keys=True)
        self.finished: Result | None = None
        """The result of a run that was finished already; then there is nothing to train."""
        if self.folder is not None:
            check_run_folder(self.folder, config, resume)
            if (self.folder / RESULT).exists():
                reporter.line(f"{self.folder} is finished already")
                self.finished = read_result(self.folder, device)
                return

        splits = shared.splits(data, data_settings, self.settings.seed)
        unlabelled = shared.unlabelled(data, data_settings, splits)
        if unlabelled is not None:
            check_unlabelled(chosen, self.own_settings)
        else:
            _refuse_unlabelled(data_settings, self.own_settings)
        facts = data_facts(splits, unlabelled)
        if self.folder is not None:
            check_same_data(self.folder, facts, splits.name)
        wanted = teacher if chosen.needs_teacher or keeps else None
        self.teacher = shared.teacher(wanted, device) if wanted is not None else None
        classes: LabelSpace | None = None
        if keeps and self.teacher is not None:
            check_keeping(chosen, self.teacher)
            classes = all_classes(self.teacher, splits.classes)
        self.student = make_student(student, splits, data_settings, self.settings.seed, classes)
        self.overlap: Overlap | None = None
        if self.teacher is not None:
            self.overlap = self.teacher.classes.overlap(splits.classes)
            if chosen.check is not None:
                chosen.check(self.teacher, self.student)
            if isinstance(self.own_settings, RefilledSettings):
                check_head(self.own_settings, self.overlap, unlabelled is not None)
        check_channels(splits, teacher=self.teacher, student=self.student)
        size = wanted_size(splits, data_settings, self.teacher, self.student)
        self.images = shared.images(
            splits, size, data_settings, self.settings, device, reporter, self.folder, unlabelled
        )
        if starts_fresh(student):
            self.student.normalise_by(self.images.mean, self.images.std)
        self.student = place(self.student, device)
        self.train_images = self.images.train
        self.own_classes = splits.classes
        if keeps and self.teacher is not None:
            self.stages = keeping_stages(
                chosen, self.teacher, self.student, splits.classes, self.train_images, self.own_settings,
                self.settings.epochs, weight=self.settings.keep_weight, tau=self.settings.keep_tau,
            )  # fmt: skip
            everything = self.student.classes
            self.images = self.images.relabelled(columns_of(everything, splits.classes), everything)
        else:
            self.stages = chosen.stages(
                self.teacher,  # type: ignore[arg-type]
                self.student,
                self.train_images,
                self.own_settings,
                self.settings.epochs,
            )
        introduction = _introduction(self.images, self.teacher, self.overlap)
        for line in (*introduction, *shared.notes, *self.student.notes):
            reporter.line(line)
        shared.notes.clear()
        if gently:
            reporter.line(f"the student starts from trained weights: learning rate {self.settings.lr} (--lr)")
        for line in _hints(device, self.settings):
            reporter.line(line)
        if self.folder is not None:
            if resume and not (self.folder / CONFIG).exists():
                reporter.line(f"there is nothing to go on with in {self.folder}: a new run begins")
            start_run_folder(self.folder, config, size, facts)

    def training(self) -> Training:
        """The training, to be run."""
        dtype = self.settings.autocast_dtype(self.student.device)
        return training(
            self.stages,
            self.student,
            self.train_images,
            self.settings,
            plan=self.plan,
            folder=self.folder,
            resume=self.resume,
            validate=_validator(self.student, self.images, dtype),
            reporter=self.reporter,
            teachers=self.shared.teachers(dtype, self.settings.compile),
        )

    def finish(self, seconds: float) -> Result:
        """Measure the trained student, and write it down."""
        if self.settings.keep_teacher_classes and self.settings.calibrate:
            self._bring_to_one_level()
        result = measure(
            self.method,
            self.teacher,
            self.student,
            self.images,
            self.settings,
            seconds,
            self.overlap,
            self.folder,
        )
        if self.folder is not None:
            save_network(self.student, self.folder)
            write_json(self.folder / RESULT, result.to_json())
        return result

    def _bring_to_one_level(self) -> None:
        """The teacher's classes and the new ones: our way where it can be done, else the paper's."""
        assert self.teacher is not None, "there is no run that keeps the classes of nobody"
        wanted = self.settings.keep_level
        if wanted or (wanted is None and is_matched_to_centres(self.own_settings)):
            dtype = self.settings.autocast_dtype(self.student.device)
            logits = evaluation.predict(self.student, self.train_images, autocast_dtype=dtype).logits
            known = evaluation.predict(self.teacher, self.train_images, autocast_dtype=dtype)
            own = self.own_classes
            if level(self.student, self.teacher, own, logits, known.embeddings, known.labels):
                return
        if not calibrate(self.student):
            self.reporter.line(f"the head of {self.student.spec} is no linear layer: it is not calibrated")


def _refuse_unlabelled(data_settings: DataSettings, own: Any) -> None:
    """Refuse what is set for images without labels where there are none; a default spelt out may stay."""
    every = (data_settings, "unlabelled_each"), (own, "imitation_unlabelled"), (own, "head_unlabelled")
    for settings, name in every:
        usual = getattr(type(settings)(), name, None)
        if getattr(settings, name, usual) != usual:
            raise UserError(f"{name} does nothing without images that have no labels: --unlabelled")


def _hints(device: torch.device, settings: TrainSettings) -> list[str]:
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


def _describe(model: str | Path | Network | None) -> str | None:
    """A model in words, for ``config.json``."""
    return model.spec if isinstance(model, Network) else None if model is None else str(model)


def _introduction(images: Prepared, teacher: Network | None, overlap: Overlap | None) -> list[str]:
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


def _validator(
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
