"""Run the cells of a table that the ledger does not have yet, each recorded as it ends."""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from typing import Any

from refilled.files import write_json
from refilled.runs.run import Run
from refilled.runs.shared import Shared
from refilled.suite.cell import Cell, TeacherCell
from refilled.suite.kinds import AnyCell
from refilled.suite.ledger import Ledger
from refilled.suite.places import DESCRIPTION, Places
from refilled.suite.runner import Desk, Runner
from refilled.suite.task_cell import TaskCell
from refilled.suite.tasks import TaskRuns
from refilled.suite.trainings import Trainings, measured_of
from refilled.training import LossIsNotFinite, Reporter, pick_device, take_turns


class Bench:
    """Runs cells and writes them to a ledger.

    Args:
        ledger: finished cells are not run again.
        places: of data and teachers.
        device: where to compute.
        say: told one line for each cell.
        together: trainings, or tasks of a cell, at the same time; None: as many as suit the device.
        reporter: shows how far a long cell is; None: nothing does.
        seconds: no cell begins that would probably end later than this; None: all do.
        settings: of trainings, that say how and not what: ``compile``, ``step``.
    """

    def __init__(
        self,
        ledger: Ledger,
        places: Places,
        device: str = "auto",
        say: Callable[[str], None] = print,
        together: int | None = None,
        reporter: Reporter | None = None,
        seconds: float | None = None,
        **settings: Any,
    ):
        self.ledger, self.say, self.seconds = ledger, say, seconds
        self._began, self._longest = time.monotonic(), 0.0
        self._awaited: set[TeacherCell] = set()
        self.desk = Desk(places, pick_device(device), together, settings, reporter or Reporter())
        self.trainings, self.tasks = Trainings(self.desk), TaskRuns(self.desk)
        self._runners: dict[str, Runner] = {Cell.kind: self.trainings, TaskCell.kind: self.tasks}

    def run(self, cells: Sequence[AnyCell]) -> None:
        """Run those of the cells that are not in the ledger.

        Teachers that are not there yet are trained beside the cells that need none of them; the others begin
        as soon as theirs is there.
        """
        missing = list({cell.key: cell for cell in cells if not self.ledger.has(cell)}.values())
        missing.sort(key=lambda cell: [str(part) for part in cell.world])  # one world after the other
        missing.sort(key=lambda cell: not self._are_there(cell.teachers))
        self._check(missing)
        begun = 0
        for kind, runner in self._runners.items():
            own = [cell for cell in missing if cell.kind == kind]
            teachers = self._missing_teachers(own)
            jobs = (
                self._job(cell, place, len(missing))
                for place, cell in enumerate(self._in_time(own), start=begun + 1)
            )
            done = take_turns(chain(map(self._teacher_job, teachers), jobs), runner.at_once)
            begun += len(done) - len(teachers)
        if begun < len(missing):
            self.say(f"{len(missing) - begun} cells are left for another time")

    def _in_time(self, cells: Iterable[AnyCell]) -> Iterator[AnyCell]:
        """Those that can begin; a cell is taken to last as long as the longest one before it."""
        for cell in cells:
            spent = time.monotonic() - self._began
            if self.seconds is not None and spent + self._longest > self.seconds:
                return
            yield cell

    def make_teachers(self, cells: Sequence[AnyCell]) -> None:
        """Train the teachers of those cells that are not there yet, unless a cell cannot be run at all."""
        self._check(cells)
        take_turns(map(self._teacher_job, self._missing_teachers(cells)), self.trainings.at_once)

    def _check(self, cells: Sequence[AnyCell]) -> None:
        for kind, runner in self._runners.items():
            runner.check([cell for cell in cells if cell.kind == kind])

    def _are_there(self, teachers: Iterable[TeacherCell]) -> bool:
        """Whether these are trained, and their numbers in the ledger."""
        return all(
            (self.desk.places.teacher_folder(teacher) / "result.json").exists()
            and self.ledger.has(teacher.as_cell())
            for teacher in teachers
        )

    def _missing_teachers(self, cells: Sequence[AnyCell]) -> list[TeacherCell]:
        """Each once, and whoever taught one before it; from now on they are waited for."""
        wanted = dict.fromkeys(
            one for cell in cells for teacher in cell.teachers for one in teacher.with_those_before()
        )
        missing = [teacher for teacher in wanted if not self._are_there([teacher])]
        self._awaited.update(missing)
        return missing

    def _teacher_job(self, teacher: TeacherCell) -> Generator[None, None, None]:
        """Train a teacher, or go on with one that was interrupted."""
        folder, cell = self.desk.places.teacher_folder(teacher), teacher.as_cell()
        yield from self._wait_for(cell.teachers)
        self.say(f"teacher: {cell.describe()}")
        run = Run(
            self.desk.places.teacher_folder(cell.teacher) if cell.teacher is not None else None,
            cell.student, self.desk.places.data_spec(cell.data), cell.method, folder,
            resume=folder.exists(), reporter=Reporter(), shared=Shared(), device=str(self.desk.device),
            **(cell.arguments() | self.desk.settings),
        )  # fmt: skip
        result = run.finished or run.finish((yield from run.training()))
        write_json(folder / DESCRIPTION, cell.to_json())
        if not self.ledger.has(cell):
            self.ledger.append(cell, measured_of(result), self.desk.device)
        self._awaited.discard(teacher)
        self.say(f"teacher: {100 * result.accuracy:.2f} %, {result.seconds:.0f} s")

    def _wait_for(self, teachers: Sequence[TeacherCell]) -> Generator[None, None, None]:
        """Let the others take their turns until these are trained: they have begun before."""
        while not self._awaited.isdisjoint(teachers):
            yield

    def _job(self, cell: AnyCell, number: int, total: int) -> Generator[None, None, None]:
        """Run a cell, write down what it measures, and say so at its end."""
        yield from self._wait_for(cell.teachers)
        began = time.monotonic()
        try:
            with closing(self._runners[cell.kind].run(cell, self.ledger.of(cell))) as job:
                for measured in job:
                    if measured is not None:
                        self.ledger.append(cell, measured, self.desk.device)
                    yield
        except LossIsNotFinite as problem:  # one cell that breaks down does not end the others
            self.say(f"[{number}/{total}] {cell.describe()}: not finished, {problem}")
            return
        record = self.ledger.of(cell)
        assert record is not None, "a run ends with what it measured"
        self._longest = max(self._longest, time.monotonic() - began)
        self.say(f"[{number}/{total}] {cell.describe()}: {cell.figures(record)}")
