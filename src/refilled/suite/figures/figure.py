"""What a figure is, and where its numbers come from."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from refilled.errors import UserError
from refilled.runs.distill import distill
from refilled.runs.folder import RESULT
from refilled.runs.result import Result, read_result
from refilled.suite.cell import Cell
from refilled.suite.judging import OverSeeds
from refilled.suite.kinds import AnyCell
from refilled.suite.ledger import Ledger
from refilled.suite.places import Places, elsewhere
from refilled.suite.run import Bench
from refilled.suite.table import Table
from refilled.suite.tiny import tiny_cell, tiny_table
from refilled.training import pick_device


class NothingToShow(UserError):
    """What a figure is drawn from has not been made yet."""


@dataclass(frozen=True)
class Studio:
    """Where the numbers of figures come from.

    Args:
        ledger: of finished runs.
        places: of data, teachers, and the students that are trained for figures.
        device: where to compute.
        seeds: seeds 0 to this less one are looked for in the ledger.
        tiny: the same figures in seconds, on digits.
        say: told one line for each figure.
        compile: for what is trained.
        trains: whether teachers and students that are not there are trained; else nothing is shown of them.
    """

    ledger: Ledger
    places: Places
    device: str = "auto"
    seeds: int = 3
    tiny: bool = False
    say: Callable[[str], None] = print
    compile: bool = False
    trains: bool = True

    @property
    def torch_device(self) -> torch.device:
        """Where to compute."""
        return pick_device(self.device)

    def cell(self, cell: AnyCell | None) -> Cell:
        """The cell, or its tiny form."""
        assert isinstance(cell, Cell), "figures ask for trainings that exist"
        return tiny_cell(cell) if self.tiny else cell

    def table(self, table: Table) -> Table:
        """The table, or its tiny form."""
        return tiny_table(table) if self.tiny else table

    def teacher(self, cell: Cell) -> Path | None:
        """Run folder of the cell's teacher, which is trained if it is not there; None for a student alone."""
        if cell.teacher is None:
            return None
        folder = self.places.teacher_folder(cell.teacher)
        if not (folder / RESULT).exists():
            self.may_train(f"teacher {folder}")
            bench = Bench(self.ledger, self.places, self.device, self.say, compile=self.compile)
            bench.make_teachers([cell])
        return folder

    def is_kept(self, cell: Cell) -> bool:
        """Whether the cell's student is there already."""
        return (self.places.student_folder(cell) / RESULT).exists()

    def student(self, cell: Cell) -> Result:
        """The cell's student in a run folder of its own; trained once, by one process: an interrupted
        training goes on. Once it is there its teacher is not missed."""
        told: list[str] = []

        def waiting() -> None:
            if not told:
                told.append(f"{cell.describe()}: another process trains it, and is waited for")
                self.say(told[0])

        folder = self.places.student_folder(cell)
        if self.is_kept(cell):
            return read_result(folder, self.torch_device)
        self.may_train(f"student {folder}")
        self.places.check_work()
        with self.places.student_to_train(cell, waiting):
            if self.is_kept(cell):  # by now
                return read_result(folder, self.torch_device)
            teacher = self.teacher(cell)
            self.say(f"training for a figure: {cell.describe()}")
            return distill(
                teacher, cell.student, self.places.data_spec(cell.data), cell.method, folder,
                resume=True, progress=False, device=self.device, compile=self.compile, **cell.arguments(),
            )  # fmt: skip

    def may_train(self, what: str) -> None:
        """Refuse what is not there where nothing is trained."""
        if not self.trains:
            raise NothingToShow(f"{what} is not there; it is trained where the figure is named")

    def bench(self, options: str) -> str:
        """A command that makes what is missing."""
        return f"refilled bench {options}{elsewhere(self.ledger.path, self.places.work, self.tiny)}"

    def command(self, name: str) -> str:
        """The command that makes a figure."""
        return self.bench(f"--figures {name}{OverSeeds(self.seeds).options()}")


@dataclass(frozen=True)
class Figure:
    """One figure.

    Args:
        name: what ``--figures`` takes.
        title: one line.
        numbers: computes all that is shown, as plain data.
        draw: (numbers, a matplotlib figure) draws them.
    """

    name: str
    title: str
    numbers: Callable[[Studio], dict[str, Any]]
    draw: Callable[[dict[str, Any], Any], None]
