"""Run the cells of a table that the ledger does not have yet, each recorded as it ends."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from itertools import chain, count
from typing import Any

from refilled.checks import check_number
from refilled.data import check_is_there
from refilled.suite.cell import Cell, TeacherCell
from refilled.suite.kinds import AnyCell
from refilled.suite.ledger import Ledger
from refilled.suite.places import Places
from refilled.suite.runner import Desk, Runner
from refilled.suite.task_cell import TaskCell
from refilled.suite.tasks import TaskRuns
from refilled.suite.teachers import TeacherRuns, before
from refilled.suite.trainings import Trainings
from refilled.training import LossIsNotFinite, Reporter, pick_device, take_turns
from refilled.training.turns import WAITING

_TEACHERS, _CELLS = "teachers", "cells"


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
        keep_students: in run folders, where figures look for them.
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
        keep_students: bool = False,
        **settings: Any,
    ):
        check_number("--together", together, least=1)
        self.ledger, self.say, self.seconds = ledger, say, seconds
        self._began, self._elsewhere = time.monotonic(), 0
        self._longest = {_TEACHERS: 0.0, _CELLS: 0.0}
        self.desk = Desk(
            places,
            pick_device(device),
            together,
            settings,
            reporter or Reporter(),
            keep_students=keep_students,
        )
        self.trainings, self.tasks = Trainings(self.desk), TaskRuns(self.desk)
        self.teachers = TeacherRuns(ledger, self.desk, say)
        self._runners: dict[str, Runner] = {Cell.kind: self.trainings, TaskCell.kind: self.tasks}

    def run(self, cells: Sequence[AnyCell]) -> None:
        """Run those of the cells that are not in the ledger.

        Teachers that are not there yet are trained beside the cells that need none of them; the others begin
        as soon as theirs is there.
        """
        done = {cell for cell in cells if self.ledger.has(cell)}
        missing = list({cell.key: cell for cell in cells if cell not in done}.values())
        if self.desk.places.has_begun():
            for cell in done:
                if isinstance(cell, Cell):  # interrupted just when it was done
                    self.desk.places.forget(cell)
        self._elsewhere = 0
        missing.sort(key=lambda cell: [str(part) for part in cell.world])  # one world after the other
        self.check(missing)
        numbers, left = count(1), 0
        for kind, runner in self._runners.items():
            waiting = [cell for cell in missing if cell.kind == kind]
            teachers = self._teachers(self.teachers.expect(waiting))
            take_turns(chain(teachers, self._jobs(waiting, numbers, len(missing))), runner.at_once)
            left += len(waiting)
        if self._elsewhere:
            self.say(f"{self._elsewhere} cells are in training in another process, and left to it")
        if left:
            self.say(f"{left} cells are left for another time")
        self.ledger.refresh()

    def _jobs(
        self, waiting: list[AnyCell], numbers: Iterator[int], total: int
    ) -> Iterator[Generator[None, None, None]]:
        """One after the other those whose teachers are there, while there is time; each is taken out of
        ``waiting``. Where none is ready, a job that lets the others go on and nothing else."""
        needs = [before(cell) for cell in waiting]  # once: while all wait, every turn looks through them
        while waiting and self._has_time(_CELLS):
            place = next((place for place, keys in enumerate(needs) if self.teachers.are_there(keys)), None)
            if place is None and all(map(self.teachers.are_left, needs)):
                return
            if place is None:
                yield _pause()
                continue
            del needs[place]
            yield self._timed(_CELLS, self._job(waiting.pop(place), next(numbers), total))

    def _teachers(self, missing: list[TeacherCell]) -> Iterator[Generator[None, None, None]]:
        """Those that are not there, while there is time."""
        for number, teacher in enumerate(missing):
            if not self._has_time(_TEACHERS):
                self.teachers.leave(missing[number:])
                return
            yield self._timed(_TEACHERS, self.teachers.job(teacher))

    def _has_time(self, kind: str) -> bool:
        """Whether a cell or a teacher can begin; it is taken to last as long as the longest one before it."""
        spent = time.monotonic() - self._began
        return self.seconds is None or spent + self._longest[kind] <= self.seconds

    def _timed(self, kind: str, job: Generator[Any, None, None]) -> Generator[Any, None, None]:
        """The job; afterwards it is known how long it took, without what it waited for another one."""
        last, seconds = time.monotonic(), 0.0
        for told in job:
            now = time.monotonic()
            seconds += 0.0 if told is WAITING else now - last
            last = now
            yield told
        self._longest[kind] = max(self._longest[kind], seconds + time.monotonic() - last)

    def make_teachers(self, cells: Sequence[AnyCell]) -> None:
        """Train the teachers of those cells that are not there yet, unless a cell cannot be run at all."""
        self.check(cells)
        take_turns(map(self.teachers.job, self.teachers.expect(cells)), self.trainings.at_once)
        for cell in cells:
            if (problem := self.teachers.problem_of(cell.teachers)) is not None:
                raise LossIsNotFinite(problem)

    def check(self, cells: Sequence[AnyCell]) -> None:
        """Refuse what cannot be run, before anything is trained."""
        for data in sorted({one.data for cell in cells for one in (cell, *cell.teachers)}):
            check_is_there(self.desk.places.data_spec(data))
        if cells:
            self.desk.places.check_work()
        for kind, runner in self._runners.items():
            runner.check([cell for cell in cells if cell.kind == kind])

    def _job(self, cell: AnyCell, number: int, total: int) -> Generator[None, None, None]:
        """Run a cell, write down what it measures, and say so at its end."""
        self.ledger.refresh()
        try:
            if (problem := self.teachers.problem_of(cell.teachers)) is not None:
                raise LossIsNotFinite(f"its teacher is not there: {problem}")
            if not self.ledger.has(cell):  # it may have been the teacher of others, too
                with closing(self._runners[cell.kind].run(cell, self.ledger.of(cell))) as job:
                    for turn, measured in enumerate(job):
                        if turn == 0:  # from now on no other process begins it, if it is a training
                            self.ledger.refresh()
                            if self.ledger.has(cell):
                                break
                        if measured is not None:
                            self.ledger.append(cell, measured, self.desk.device)
                        yield
        except LossIsNotFinite as problem:  # one cell that breaks down does not end the others
            self.say(f"[{number}/{total}] {cell.describe()}: not finished, {problem}")
            return
        record = self.ledger.of(cell)
        if record is not None and isinstance(cell, Cell):
            self.desk.places.forget(cell)  # its checkpoint is not needed any more
        if record is None:  # a run ends with what it measured, unless another process has it in training
            self._elsewhere += 1
            return
        self.say(f"[{number}/{total}] {cell.describe()}: {cell.figures(record)}")


def _pause() -> Generator[None, None, None]:
    """A job that is over after one turn."""
    yield
