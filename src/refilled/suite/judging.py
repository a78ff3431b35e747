"""How a place in a table is judged: by trainings with several seeds, or by many tasks.

Each way says which cells a place is made of, and how their records become a number, a gain and a legend.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from refilled.checks import check_number
from refilled.errors import UserError
from refilled.evaluation import half_interval, spread
from refilled.suite.kinds import AnyCell
from refilled.suite.ledger import Ledger
from refilled.suite.task_cell import TASKS, TaskCell
from refilled.suite.wording import listed

SEEDS = 3
TINY_TASKS, TRIAL_TASKS = 4, 500
Records = Sequence[dict[str, Any]]


class Judge(Protocol):
    """One of the ways."""

    def runs(self, cell: AnyCell) -> list[AnyCell]:
        """The cells that a place is made of."""

    def number(self, records: Records, measure: str) -> str:
        """What was measured, in percent, and its doubt."""

    def gain(self, records: Records, alone: Records, measure: str) -> str | None:
        """The gain over the records of another cell; None: they have nothing to be compared by."""

    def legend(self, what: str) -> str:
        """What the numbers are."""

    def gain_legend(self) -> str:
        """What the gains are."""

    def effort(self, records: Records) -> str:
        """What was run."""

    def for_page(self, table: Iterable[AnyCell], ledger: Ledger) -> "Judge":
        """How a page of a table's cells is judged that others read, whatever was just run: nothing that was
        measured is left out."""


@dataclass(frozen=True)
class OverSeeds:
    """Trainings with seeds 0, 1, …: mean and standard deviation."""

    seeds: int = SEEDS

    def __str__(self) -> str:
        return f"{self.seeds} seeds"

    @classmethod
    def asked(cls, table: str, seeds: int | None, tasks: int | None, usual_tasks: int) -> "OverSeeds":
        """As a person asks for it; tasks are refused."""
        if tasks is not None:
            raise UserError(f"--tasks is for tables of few-shot tasks; {table} is judged over --seeds")
        check_number("--seeds", seeds, least=1)
        return cls(seeds if seeds is not None else SEEDS)

    def options(self) -> str:
        """What a command says to get it, where it is not the usual."""
        return f" --seeds {self.seeds}" if self.seeds != SEEDS else ""

    def for_page(self, table: Iterable[AnyCell], ledger: Ledger) -> "OverSeeds":
        """With the usual number of seeds at least, and up to the last one that any cell has: one before it
        may have broken down."""
        seeds, known = max(self.seeds, SEEDS), {record["cell"].get("seed", 0) for record in ledger.records}
        for cell in table:
            others = (seed for seed in known if seed >= seeds)
            seeds = max([seeds, *(seed + 1 for seed in others if ledger.of(cell.with_seed(seed)))])
        return OverSeeds(seeds)

    def runs(self, cell: AnyCell) -> list[AnyCell]:
        """One training for each seed."""
        return [cell.with_seed(seed) for seed in range(self.seeds)]

    def number(self, records: Records, measure: str) -> str:
        """``77.35 ± 0.51``, and [n] for n records where there should be more."""
        found = spread([100 * record[measure] for record in records])
        text = f"{found.mean:.2f}" + (f" ± {found.std:.2f}" if len(records) > 1 else "")
        return text + (f" [{len(records)}]" if len(records) < self.seeds else "")

    def gain(self, records: Records, alone: Records, measure: str) -> str | None:
        """``-0.05``: mean over the seeds that both have."""
        gain = self.mean_gain(records, alone, measure)
        return None if gain is None else f"{gain:+.2f}"

    def mean_gain(self, records: Records, alone: Records, measure: str) -> float | None:
        """The same in points; None where they share no seed."""
        by_seed = {record["cell"]["seed"]: record for record in alone}
        pairs = [(r, by_seed[r["cell"]["seed"]]) for r in records if r["cell"]["seed"] in by_seed]
        return 100 * sum(a[measure] - b[measure] for a, b in pairs) / len(pairs) if pairs else None

    def legend(self, what: str) -> str:
        """Of the numbers."""
        seeds = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
        return (
            f"{what} in percent, at the last epoch; mean ± standard deviation of {seeds}, [n] where only n "
            "are there; beside it the published number."
        )

    def gain_legend(self) -> str:
        """Of the gains."""
        return (
            "After the comma: the gain over the student alone with the same total number of epochs and the "
            "same seeds."
        )

    def effort(self, records: Records) -> str:
        """Runs and their epochs."""
        epochs = sorted({record["epochs"] for record in records} - {0})
        return f"{len(records)} runs of {listed(epochs) or 'no'} epochs"


@dataclass(frozen=True)
class OverTasks:
    """The first tasks of one seed: mean and its 95 % confidence interval, gains task by task."""

    tasks: int = TASKS

    def __str__(self) -> str:
        return f"{self.tasks:,} tasks"

    @classmethod
    def asked(cls, table: str, seeds: int | None, tasks: int | None, usual_tasks: int) -> "OverTasks":
        """As a person asks for it; seeds are refused."""
        if seeds is not None:
            raise UserError(f"--seeds is for tables of trainings; {table} is judged over --tasks")
        check_number("--tasks", tasks, least=1)
        return cls(tasks if tasks is not None else usual_tasks)

    def options(self) -> str:
        """What a command says to get it, where it is not the usual."""
        return f" --tasks {self.tasks}" if self.tasks != TASKS else ""

    def for_page(self, table: Iterable[AnyCell], ledger: Ledger) -> "OverTasks":
        """With as many tasks as any cell has."""
        records = ledger.find(cell for one in table for cell in OverTasks(sys.maxsize).runs(one))
        return OverTasks(max([self.tasks, *(record["tasks"] for record in records)]))

    def runs(self, cell: AnyCell) -> list[AnyCell]:
        """The cell with that many tasks."""
        assert isinstance(cell, TaskCell), "a table of tasks has cells of tasks"
        return [cell.with_tasks(self.tasks)]

    def number(self, records: Records, measure: str) -> str:
        """``55.13 ± 0.20``, and [n] for n tasks where there should be more."""
        (record,) = records
        text = _with_interval(f"{100 * record[measure]:.2f}", record["half_interval"])
        return text + (f" [{record['tasks']:,}]" if record["tasks"] < self.tasks else "")

    def gain(self, records: Records, alone: Records, measure: str) -> str | None:
        """``+1.21 ± 0.15``: mean over the tasks that both have, and the interval of the differences."""
        if not alone:
            return None
        ours, theirs = records[0], alone[0]
        asked = ours["cell"]["ways"] * ours["cell"]["queries"]
        differences = [(a - b) / asked for a, b in zip(ours["right"], theirs["right"])]
        mean = sum(differences) / len(differences)
        return _with_interval(
            f"{100 * mean:+.2f}", half_interval(differences) if len(differences) > 1 else None
        )

    def legend(self, what: str) -> str:
        """Of the numbers."""
        return (
            f"Accuracy on the queries of {self.tasks:,} tasks, in percent; mean ± half the width of its 95 % "
            "confidence interval, [n] where only n tasks are there; beside it the published number. All "
            "methods have the same tasks. The interval is of the draw of tasks alone: of each network that "
            "was trained on the seen classes there is one."
        )

    def gain_legend(self) -> str:
        """Of the gains."""
        return (
            "After the comma: the gain over the same student trained in as many steps without the teacher, "
            "task by task on the same tasks, ± half the width of that difference's 95 % confidence interval."
        )

    def effort(self, records: Records) -> str:
        """Cells and their tasks."""
        return f"{len(records)} cells of together {sum(record['tasks'] for record in records):,} tasks"


def _with_interval(text: str, half: float | None) -> str:
    return f"{text} ± {100 * half:.2f}" if half is not None else text
