"""Run the cells of a table that the ledger does not have yet, each recorded as it ends."""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any

from refilled.files import write_json
from refilled.runs.distill import distill
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
        self.desk = Desk(places, pick_device(device), together, settings, reporter or Reporter())
        self.trainings, self.tasks = Trainings(self.desk), TaskRuns(self.desk)
        self._runners: dict[str, Runner] = {Cell.kind: self.trainings, TaskCell.kind: self.tasks}

    def run(self, cells: Sequence[AnyCell]) -> None:
        """Run those of the cells that are not in the ledger; the teachers they need come first."""
        missing = list({cell.key: cell for cell in cells if not self.ledger.has(cell)}.values())
        missing.sort(key=lambda cell: [str(part) for part in cell.world])  # one world after the other
        self.make_teachers(missing)
        begun = 0
        for kind, runner in self._runners.items():
            own = (cell for cell in missing if cell.kind == kind)
            jobs = (
                self._job(cell, place, len(missing))
                for place, cell in enumerate(self._in_time(own), start=begun + 1)
            )
            begun += len(take_turns(jobs, runner.at_once))
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
        for kind, runner in self._runners.items():
            runner.check([cell for cell in cells if cell.kind == kind])
        for teacher in dict.fromkeys(teacher for cell in cells for teacher in cell.teachers):
            self._make(teacher)

    def _make(self, teacher: TeacherCell) -> None:
        """Train a teacher, unless that was done before; an interrupted one goes on."""
        folder, cell = self.desk.places.teacher_folder(teacher), teacher.as_cell()
        if teacher.taught_by is not None:
            self._make(teacher.taught_by)
        if (folder / "result.json").exists() and self.ledger.has(cell):
            return
        self.say(f"teacher: {cell.describe()}")
        taught_by = self.desk.places.teacher_folder(cell.teacher) if cell.teacher is not None else None
        result = distill(
            taught_by, cell.student, self.desk.places.data_spec(cell.data), cell.method, folder,
            resume=folder.exists(), progress=False, device=str(self.desk.device),
            **(cell.arguments() | self.desk.settings),
        )  # fmt: skip
        write_json(folder / DESCRIPTION, cell.to_json())
        if not self.ledger.has(cell):
            self.ledger.append(cell, measured_of(result), self.desk.device)
        self.say(f"teacher: {100 * result.accuracy:.2f} %, {result.seconds:.0f} s")

    def _job(self, cell: AnyCell, number: int, total: int) -> Generator[None, None, None]:
        """Run a cell, write down what it measures, and say so at its end."""
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
