"""Run the cells of a table that the ledger does not have yet: several at once, each recorded as it ends."""

from collections.abc import Callable, Generator, Sequence
from typing import Any

from refilled import evaluation
from refilled.runs import Result
from refilled.runs.distill import distill
from refilled.runs.run import Run
from refilled.runs.shared import Shared
from refilled.suite.baselines import TEACHER_BASELINES, judge_teacher
from refilled.suite.cell import Cell, TeacherCell
from refilled.suite.incremental import judge_jointly, keeps, teacher_with_probe
from refilled.suite.ledger import Ledger
from refilled.suite.places import Places
from refilled.training import Reporter, pick_device, take_turns

AT_ONCE = 4
"""Trainings side by side on a GPU."""


class Bench:
    """Runs cells and writes them to a ledger.

    Args:
        ledger: finished cells are not run again.
        places: of data and teachers.
        device: where to compute.
        say: told one line for each cell.
        at_once: trainings at the same time; None: four on a GPU, else one.
        settings: that say how, not what: ``compile``, ``step``.
    """

    def __init__(
        self,
        ledger: Ledger,
        places: Places,
        device: str = "auto",
        say: Callable[[str], None] = print,
        at_once: int | None = None,
        **settings: Any,
    ):
        self.ledger, self.places, self.say, self.settings = ledger, places, say, settings
        self.device = pick_device(device)
        self.at_once = at_once or (AT_ONCE if self.device.type == "cuda" else 1)
        self._shared: dict[tuple[Any, ...], Shared] = {}

    def run(self, cells: Sequence[Cell]) -> None:
        """Run those of the cells that are not in the ledger; the teachers they need come first."""
        missing = list({cell.key: cell for cell in cells if not self.ledger.has(cell)}.values())
        missing.sort(key=lambda cell: [str(part) for part in cell.world])  # one world after the other
        self.make_teachers(missing)
        total = len(missing)
        jobs = (self._job(cell, number, total) for number, cell in enumerate(missing, start=1))
        take_turns(jobs, self.at_once)

    def make_teachers(self, cells: Sequence[Cell]) -> None:
        """Train the teachers of those cells that are not there yet."""
        for teacher in {cell.teacher for cell in cells if cell.teacher is not None}:
            self._make(teacher)

    def _make(self, teacher: TeacherCell) -> None:
        """Train a teacher, unless that was done before; an interrupted one goes on."""
        folder, cell = self.places.teacher_folder(teacher), teacher.as_cell()
        if (folder / "result.json").exists() and self.ledger.has(cell):
            return
        self.say(f"teacher: {cell.describe()}")
        result = distill(
            None, cell.student, self.places.data_spec(cell.data), "student", folder,
            resume=folder.exists(), progress=False, device=str(self.device), **self._settings(cell),
        )  # fmt: skip
        if not self.ledger.has(cell):
            self.ledger.append(cell, _measured(result), self.device)
        self.say(f"teacher: {100 * result.accuracy:.2f} %, {result.seconds:.0f} s")

    def _settings(self, cell: Cell) -> dict[str, Any]:
        return cell.arguments() | self.settings

    def _job(self, cell: Cell, number: int, total: int) -> Generator[None, None, None]:
        if cell.world not in self._shared:
            self._shared = {cell.world: Shared(self.at_once)}  # the world before is done, or nearly
        shared = self._shared[cell.world]
        teacher = self.places.teacher_folder(cell.teacher) if cell.teacher else None
        data = self.places.data_spec(cell.data)
        if keeps(cell) and cell.method == "teacher-lr" and teacher is not None and cell.teacher is not None:
            joined, new, size = teacher_with_probe(teacher, data, shared, self.device, self._settings(cell))
            joint = judge_jointly(joined, new, size, cell.teacher, self.places, self.device)
            accuracy = evaluation.top_k(new.logits, new.labels)
            measured = joint | {"test_accuracy": accuracy, "epochs": 0, "seconds": 0.0}
        elif cell.method in TEACHER_BASELINES and teacher is not None:
            measured = judge_teacher(cell.method, teacher, data, shared, self.device, self._settings(cell))
        else:
            run = Run(
                teacher, cell.student, data, cell.method, None,
                resume=False, reporter=Reporter(), shared=shared, device=str(self.device),
                **self._settings(cell),
            )  # fmt: skip
            seconds = yield from run.training()
            measured = _measured(run.finish(seconds / self.at_once))
            if keeps(cell) and cell.teacher is not None:
                dtype = run.settings.autocast_dtype(self.device)
                new = evaluation.predict(run.student, run.images.test, autocast_dtype=dtype)
                measured |= judge_jointly(
                    run.student, new, run.images.size, cell.teacher, self.places, self.device
                )
        self.ledger.append(cell, measured | {"at_once": self.at_once}, self.device)
        figures = f"{100 * measured['test_accuracy']:.2f} %, {measured['seconds']:.0f} s"
        self.say(f"[{number}/{total}] {cell.describe()}: {figures}")


def _measured(result: Result) -> dict[str, Any]:
    """What goes into the ledger."""
    return {
        "test_accuracy": result.accuracy,
        "val_accuracy": result.val_accuracy,
        "ncm": result.ncm,
        "one_nn": result.one_nn,
        "teacher_ncm": result.teacher_ncm,
        "overlap": result.overlap,
        "epochs": result.epochs,
        "seconds": round(result.seconds, 2),
        "test_images": result.test_images,
    }
