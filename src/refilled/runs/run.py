"""One run from beginning to end: data, teacher, student, training, evaluation, run folder."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from refilled import evaluation
from refilled.data import ImageSet, Splits, check_outside
from refilled.errors import UserError
from refilled.files import write_json, write_text
from refilled.labels import Overlap
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
from refilled.runs.begun import Begun
from refilled.runs.choice import advise
from refilled.runs.facts import check_same_data, data_facts
from refilled.runs.folder import CONFIG, RESULT, begun_run, check_run_folder, start_run_folder
from refilled.runs.prepare import (
    check_channels,
    make_student,
    place,
    starts_fresh,
    starts_trained,
    wanted_size,
)
from refilled.runs.result import Result, measure, read_result, validator
from refilled.runs.settings import DataSettings, refuse_unlabelled, sort_settings, what_settings
from refilled.runs.shared import Shared
from refilled.runs.words import advise_groups, describe, hints, introduction, last_words
from refilled.training import (
    TRAINED_LR,
    Reporter,
    Training,
    make_deterministic,
    pick_device,
    training,
)
from refilled.training.metrics import METRICS


class Run:
    """A run that is ready to train; everything that can be refused has been, before an image is decoded.

    Args:
        teacher, student, data, method, out, resume, settings: see :func:`refilled.distill`.
        reporter: shows progress.
        shared: what it has in common with other runs.
        begun: of a run without a run folder that can go on; None: it cannot.
    """

    student: Network

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
        begun: Begun | None = None,
        **settings: Any,
    ):
        self.chosen, self.method, self.resume = get_method(method), method, resume
        self.reporter, self.shared = reporter, shared
        self.folder = Path(out).expanduser() if out is not None else None
        self.begun = begun if self.folder is None else None
        self.settings, data_settings, self.own_settings = sort_settings(self.chosen, settings)
        wanted = teacher if self.chosen.needs_teacher or self.settings.keep_teacher_classes else None
        self._check_networks(teacher, student)
        self._choose_rate(student)
        self.device = pick_device(self.settings.device)
        make_deterministic(self.settings.deterministic)
        self.config = config = {
            "method": method,
            "teacher": describe(wanted),
            "student": describe(student),
            "data": data.name if isinstance(data, Splits) else str(Path(data)),
            "settings": what_settings(self.settings, data_settings, self.own_settings),
        }
        self.plan = json.dumps(config, sort_keys=True)
        self.finished = self._finished(config)
        """The result of a run that was finished already; then there is nothing to train."""
        if self.finished is not None:
            return
        if self.folder is not None and not isinstance(data, Splits):
            check_outside(self.folder, data)
        splits, unlabelled = self._open(data, data_settings)
        self.facts = facts = data_facts(splits, unlabelled)
        if self.folder is not None:
            check_same_data(self.folder, facts, splits.name)
        if self.begun is not None:
            self.plan = self.begun.plan(facts)
        self._make_networks(wanted, student, splits, data_settings, unlabelled is not None)
        size = wanted_size(splits, data_settings, self.teacher, self.student)
        self.images = shared.images(
            splits, size, data_settings, self.settings, self.device, reporter, self.folder, unlabelled
        )
        if starts_fresh(student):
            self.student.normalise_by(self.images.mean, self.images.std)
        self.student = place(self.student, self.device)
        self.train_images = self.images.train
        self.stages = self._make_stages()
        self._check_groups()
        for line in self._first_words():
            reporter.line(line)
        if self.folder is not None:
            start_run_folder(self.folder, config, size, facts)

    # --- what __init__ does, step by step -------------------------------------------------------------

    def _check_networks(self, teacher: str | Path | Network | None, student: str | Path | Network) -> None:
        keeps = self.settings.keep_teacher_classes
        if (self.chosen.needs_teacher or keeps) and teacher is None:
            what = f"method {self.method}" if self.chosen.needs_teacher else "--keep-teacher-classes"
            raise UserError(f"{what} needs a teacher: a run folder, timm:NAME or hf:FOLDER")
        if teacher is student and isinstance(student, Network):
            raise UserError("teacher and student are one and the same network; give a copy of it")

    def _choose_rate(self, student: str | Path | Network) -> None:
        """A student that starts from trained weights is trained gently, unless a rate was given; a run that
        has begun keeps its own."""
        self._gently = self.settings.lr is None and (self.chosen.takes_over or starts_trained(student))
        if self._gently:
            begun = begun_run(self.folder).get("settings", {}).get("train", {}) if self.resume else {}
            self.settings = replace(self.settings, lr=begun.get("lr", TRAINED_LR))

    def _finished(self, config: dict[str, Any]) -> Result | None:
        """What a finished run measured; a folder that is another run's is refused."""
        if self.folder is None:
            return None
        check_run_folder(self.folder, config, self.resume)
        if not (self.folder / RESULT).exists():
            return None
        self.reporter.line(f"{self.folder} is finished already")
        return read_result(self.folder, self.device)

    def _open(self, data: str | Path | Splits, data_settings: DataSettings) -> tuple[Splits, ImageSet | None]:
        """The data, and images without labels beside it; no image is decoded."""
        splits = self.shared.splits(data, data_settings, self.settings.seed)
        unlabelled = self.shared.unlabelled(data, data_settings, splits)
        if unlabelled is not None:
            check_unlabelled(self.chosen, self.own_settings)
        else:
            refuse_unlabelled(self.chosen, data_settings, self.own_settings)
        return splits, unlabelled

    def _make_networks(
        self,
        teacher: str | Path | Network | None,
        student: str | Path | Network,
        splits: Splits,
        data_settings: DataSettings,
        has_unlabelled: bool,
    ) -> None:
        """Both of them, and how their classes overlap; what they cannot do is refused."""
        self.teacher = self.shared.teacher(teacher, self.device) if teacher is not None else None
        self.own_classes, everything = splits.classes, None
        if self.settings.keep_teacher_classes and self.teacher is not None:
            check_keeping(self.chosen, self.teacher)
            everything = all_classes(self.teacher, splits.classes)
        self.student = make_student(student, splits, data_settings, self.settings.seed, everything)
        self.overlap: Overlap | None = None
        if self.teacher is not None:
            self.overlap = self.teacher.classes.overlap(splits.classes)
            self.chosen.check(self.teacher, self.student)
            if isinstance(self.own_settings, RefilledSettings):
                check_head(self.own_settings, self.overlap, has_unlabelled)
        check_channels(splits, teacher=self.teacher, student=self.student)

    def _make_stages(self) -> list[Stage]:
        """The method's stages; where old classes are kept, images are judged among all from now on."""
        own, epochs = self.own_settings, self.settings.epochs
        if not self.settings.keep_teacher_classes or self.teacher is None:
            return self.chosen.stages(
                self.teacher,  # type: ignore[arg-type]
                self.student,
                self.train_images,
                own,
                epochs,
            )
        stages = keeping_stages(
            self.chosen, self.teacher, self.student, self.own_classes, self.train_images, own, epochs,
            weight=self.settings.keep_weight, tau=self.settings.keep_tau,
        )  # fmt: skip
        everything = self.student.classes
        self.images = self.images.relabelled(columns_of(everything, self.own_classes), everything)
        return stages

    def _check_groups(self) -> None:
        """Refuse batches of one class, in which there is nothing to compare."""
        most = self.train_images.batch_size // 2
        for stage in self.stages:
            if stage.group > max(most, 1):
                raise UserError(
                    f"group={stage.group} leaves hardly more than one class in a batch of "
                    f"{self.train_images.batch_size} images: at most {most}, or a larger --batch-size"
                )

    def _first_words(self) -> Iterator[str]:
        """What a person is told before the training begins."""
        yield from introduction(self.images, self.teacher, self.overlap)
        yield from self.shared.notes
        plain_would_do = not self.settings.keep_teacher_classes and not self.train_images.unlabelled
        if self.overlap is not None and plain_would_do:
            per_class = len(self.images.train.labels) / len(self.own_classes)
            if advice := advise(self.method, self.overlap, per_class):
                yield advice
        if advice := advise_groups(self.own_settings, self.train_images.batch_size, len(self.own_classes)):
            yield advice
        self.shared.notes.clear()
        yield from self.student.notes
        if self._gently:
            yield f"the student starts from trained weights: learning rate {self.settings.lr} (--lr)"
        yield from hints(self.device, self.settings)
        if self.folder is not None and self.resume and not (self.folder / CONFIG).exists():
            yield f"there is nothing to go on with in {self.folder}: a new run begins"

    # --------------------------------------------------------------------------------------------------

    def training(self, clock: Callable[[], float] = time.monotonic) -> Training:
        """The training, to be run; the clock says what its seconds are."""
        dtype = self.settings.autocast_dtype(self.student.device)
        begun = self.begun
        return training(
            self.stages,
            self.student,
            self.train_images,
            self.settings,
            plan=self.plan,
            folder=self.folder if begun is None else begun.folder,
            resume=self.resume if begun is None else begun.goes_on(self.plan),
            validate=validator(self.student, self.images, dtype),
            reporter=self.reporter,
            teachers=self.shared.teachers(dtype, self.settings.compile),
            beginnings=self.shared.beginnings,
            clock=clock,
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
            self._write(self.folder, result)
        for line in last_words(result, self.student.dim, self.settings, self.own_settings):
            self.reporter.line(line)
        return result

    def keep(self, folder: Path, result: Result) -> None:
        """Write a run folder of a run that had none."""
        start_run_folder(folder, self.config, self.images.size, self.facts)
        if self.begun is not None and (log := self.begun.folder / METRICS).exists():
            write_text(folder / METRICS, log.read_text(encoding="utf-8"))
        self._write(folder, replace(result, out=str(folder)))

    def _write(self, folder: Path, result: Result) -> None:
        save_network(self.student, folder)
        write_json(folder / RESULT, result.to_json())

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
