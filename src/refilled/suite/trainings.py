"""Run cells that are trainings: a student, or a classifier on the frozen teacher's embedding."""

import hashlib
from collections.abc import Generator, Sequence
from typing import Any

from refilled import evaluation
from refilled.data import Splits
from refilled.errors import UserError
from refilled.methods import METHODS
from refilled.models.saved import WEIGHTS
from refilled.runs import Result
from refilled.runs.begun import Begun
from refilled.runs.run import Run
from refilled.runs.shared import Shared
from refilled.suite.baselines import TEACHER_BASELINES, judge_teacher
from refilled.suite.cell import Cell
from refilled.suite.old_and_new import judge_jointly, judge_student, teacher_with_probe
from refilled.suite.runner import Desk, Job
from refilled.suite.validation import once_open, without_test
from refilled.training import Beginnings, Reporter

AT_ONCE = 4
"""Trainings side by side on a GPU."""
NOT_COMPILED = {"compile": False}
"""Few images, which come in batches of a size of their own, and teachers, each one training of its own
network: compiling takes longer than it gives back, and holds up all others. A WRN-40-2 takes a minute, and
40 seconds less for 7.5 million images then (H200; results/speed.md)."""
Measuring = Generator[None, None, dict[str, Any]]
"""A job that ends with what was measured."""


class Trainings:
    """Runs training cells, several in turns, one world of images and teacher after the other.

    Args:
        desk: data, teachers and device.
    """

    def __init__(self, desk: Desk):
        self.desk = desk
        self.at_once = desk.together or (AT_ONCE if desk.device.type == "cuda" else 1)
        self._shared: dict[tuple[Any, ...], Shared] = {}
        self._held_out: dict[tuple[Any, ...], Splits] = {}

    def check(self, cells: Sequence[Cell]) -> None:
        """Refuse a teacher of other classes where the method takes none; all else that a run cannot do it
        refuses itself, before it decodes an image."""
        for cell in cells:
            if cell.method in METHODS and METHODS[cell.method].same_classes and not cell.same_classes:
                raise UserError(
                    f"{cell.describe()}: {cell.method} needs a teacher of the same classes; "
                    "refilled takes any"
                )

    def run(self, cell: Cell, before: dict[str, Any] | None = None) -> Job:
        """Train or fit, and measure; there is one record, at the end. A training that was interrupted goes on
        where it was. One that another process has in training is left to it: there is no record."""
        if cell.world not in self._shared:
            self._shared = {
                cell.world: Shared(self.at_once, beginnings=Beginnings())
            }  # the world before is done, or nearly
            self._held_out = {}
        places, shared = self.desk.places, self._shared[cell.world]
        with places.begun_folder(cell) as folder:
            if folder is None:
                return
            yield None  # before anything is done: it may have been done while this process waited
            begun = Begun(folder, self._identity(cell))
            measured = yield from self._job(cell, shared, begun)
            yield measured | {"at_once": self.at_once}

    def _identity(self, cell: Cell) -> str:
        """What a cell is, and its teacher's weights: one that was trained anew is another."""
        if cell.teacher is None:
            return cell.key
        weights = self.desk.places.teacher_folder(cell.teacher) / WEIGHTS
        return f"{cell.key} {hashlib.sha256(weights.read_bytes()).hexdigest()}"

    def _job(self, cell: Cell, shared: Shared, begun: Begun) -> Measuring:
        """What a cell asks for: a student unless it names a baseline, which may have to keep old classes."""
        if cell.method not in TEACHER_BASELINES:
            return self._student(cell, shared, begun)
        return self._joined_baseline(cell, shared) if cell.keeps else self._baseline(cell, shared)

    def _student(self, cell: Cell, shared: Shared, begun: Begun) -> Measuring:
        places = self.desk.places
        run = Run(
            places.teacher_folder(cell.teacher) if cell.teacher else None,
            cell.student, self._data(cell), cell.method, None,
            resume=False, reporter=Reporter(), shared=shared, begun=begun,
            device=str(self.desk.device), **self._settings(cell),
        )  # fmt: skip
        result = run.finish((yield from self.desk.shares.own_part(run.training)))
        if self.desk.keep_students and not (folder := places.student_folder(cell)).exists():
            run.keep(folder, result)
        measured = measured_of(result)
        if cell.on_validation:  # its data had no other images
            return measured | {"test_accuracy": None, "val_accuracy": measured["test_accuracy"]}
        return measured | (judge_student(run, cell, self.desk) if cell.keeps else {})

    def _data(self, cell: Cell) -> str | Splits:
        """What a student learns from and is judged on."""
        if not cell.on_validation:
            return self.desk.places.data_spec(cell.data)
        if cell.world not in self._held_out:
            self._held_out[cell.world] = without_test(cell, self.desk.places)
        return self._held_out[cell.world]

    def _baseline(self, cell: Cell, shared: Shared) -> Measuring:
        yield
        return judge_teacher(cell.method, *self._frozen(cell, shared))

    def _joined_baseline(self, cell: Cell, shared: Shared) -> Measuring:
        yield
        assert cell.teacher is not None, "baselines are on a teacher's embedding"
        joined, new, size = teacher_with_probe(*self._frozen(cell, shared))
        joint = judge_jointly(joined, new, size, cell.teacher, self.desk.places, self.desk.device)
        accuracy = evaluation.top_k(new.logits, new.labels)
        return joint | {"test_accuracy": accuracy, "epochs": 0, "seconds": 0.0}

    def _frozen(self, cell: Cell, shared: Shared) -> tuple[Any, ...]:
        """What baselines on the teacher's embedding take: teacher, data, what is shared, device, settings."""
        assert cell.teacher is not None, "baselines are on a teacher's embedding"
        places = self.desk.places
        folder, data = places.teacher_folder(cell.teacher), places.data_spec(cell.data)
        return folder, data, shared, self.desk.device, self._settings(cell)

    def _settings(self, cell: Cell) -> dict[str, Any]:
        """Of what is trained, and how."""
        how = self.desk.settings | (NOT_COMPILED if cell.shots else {})
        return (once_open(cell.arguments()) if cell.on_validation else cell.arguments()) | how


def measured_of(result: Result) -> dict[str, Any]:
    """What goes into the ledger."""
    return {
        "test_accuracy": result.accuracy,
        "val_accuracy": result.val_accuracy,
        "ncm": result.ncm,
        "one_nn": result.one_nn,
        "silent": result.silent,
        "teacher_ncm": result.teacher_ncm,
        "overlap": result.overlap,
        "epochs": result.epochs,
        "seconds": round(result.seconds, 2),
        "test_images": result.test_images,
    }
