"""A table of the paper as data: its axes, what a cell of it is, and the published numbers."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from refilled.errors import UserError, unknown
from refilled.methods import METHODS
from refilled.suite.cell import Cell
from refilled.suite.judging import TINY_TASKS, TRIAL_TASKS, OverSeeds, OverTasks
from refilled.suite.kinds import AnyCell
from refilled.suite.task_cell import TASKS

Point = Mapping[str, Any]
"""A place in a table: a value for each of its axes."""


def shown(value: Any) -> str:
    """A value of an axis as a person reads and writes it."""
    return "all" if value is None or value == "None" else str(value)


@dataclass(frozen=True)
class Table:
    """One experiment.

    Args:
        name: what ``refilled bench`` takes.
        title: one line.
        source: where in the paper it comes from.
        axes: names and values; each combination is a cell. The last two are the rows and columns of the
            rendered table, the others make one table each.
        cell: from a point to its cell; None where the combination makes no sense.
        published: (point -> accuracy in percent, or None) the paper's numbers.
        measure: which measured number is shown, ``test_accuracy``, ``ncm`` …; or which at each point.
        alone: from a point to the cell of the student alone, trained as long; None: there is none.
        judged: over seeds, each a training, or over many tasks.
        with_alone: whether the cells of ``alone`` are run with those that were asked for; else they are rows.
        note: a paragraph under the rendered table.
    """

    name: str
    title: str
    source: str
    axes: Mapping[str, tuple[Any, ...]]
    cell: Callable[[Point], AnyCell | None]
    published: Callable[[Point], float | None]
    measure: str | Callable[[Point], str] = "test_accuracy"
    alone: Callable[[Point], AnyCell | None] | None = None
    judged: type[OverSeeds] | type[OverTasks] = OverSeeds
    with_alone: bool = False
    note: str = ""

    @property
    def row(self) -> str:
        """The axis of the rows."""
        return list(self.axes)[-2]

    @property
    def column(self) -> str:
        """The axis of the columns."""
        return list(self.axes)[-1]

    def measured(self, point: Point) -> str:
        """Which measured number is shown at a point."""
        return self.measure if isinstance(self.measure, str) else self.measure(point)

    def judge(
        self, seeds: int | None = None, tasks: int | None = None, *, tiny: bool = False, trial: bool = False
    ) -> OverSeeds | OverTasks:
        """How it is judged, with as many seeds or tasks as were asked for; the other kind is refused.

        Without a wish there are 3 seeds, or 10,000 tasks (in a ``trial`` of a search 500, ``tiny`` a few).
        """
        usual = TINY_TASKS if tiny else TRIAL_TASKS if trial else TASKS
        return self.judged.asked(self.name, seeds, tasks, usual)

    def chosen(self, where: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
        """The axes, cut to the values that were asked for; what is not there is refused by its near names."""
        axes = dict(self.axes)
        for axis, wanted in where.items():
            if axis not in axes:
                raise UserError(f"table {self.name} has no axis {axis!r}; it has {', '.join(axes)}")
            known = {shown(value): value for value in axes[axis]}
            for value in wanted:
                if shown(value) not in known:
                    raise self._no_such(axis, shown(value), tuple(known))
            axes[axis] = tuple(value for value in axes[axis] if shown(value) in {shown(w) for w in wanted})
        return axes

    def where(
        self, named: Mapping[str, tuple[Any, ...]], assignments: tuple[str, ...] = ()
    ) -> dict[str, tuple[Any, ...]]:
        """What a person asked for, by axis: ``named`` ones that are not empty, and ``AXIS=VALUE`` each.

        All of it is looked at: an axis that the table does not have is refused, so is a value, and so are
        values that do not go together.
        """
        wanted: dict[str, tuple[Any, ...]] = {axis: values for axis, values in named.items() if values}
        for assignment in assignments:
            axis, equals, value = assignment.partition("=")
            if not equals:
                raise UserError(f"--where takes AXIS=VALUE, not {assignment!r}")
            wanted[axis] = (*wanted.get(axis, ()), value)
        if next(self.points(wanted), None) is None:
            raise self._no_cell(wanted)
        return wanted

    def points(self, where: Mapping[str, tuple[Any, ...]] | None = None) -> Iterator[Point]:
        """All points, or those with the values asked for, that have a cell."""
        axes = self.chosen(where or {})
        for values in itertools.product(*axes.values()):
            point = dict(zip(axes, values))
            if self.cell(point) is not None:
                yield point

    def _no_such(self, axis: str, value: str, known: tuple[str, ...]) -> UserError:
        """A value that an axis does not have; a method of ours may have no row, and there may be a reason."""
        if axis != "method" or value not in METHODS:
            return unknown(axis, value, known)
        cells = map(self.cell, self.points())
        mixed = any(isinstance(cell, Cell) and not cell.same_classes for cell in cells)
        same = METHODS[value].same_classes and mixed
        reason = " needs a teacher of the same classes, and" if same else ""
        return UserError(f"{value}{reason} is no row of {self.name}; its rows: {', '.join(known)}")

    def _no_cell(self, wanted: Mapping[str, tuple[Any, ...]]) -> UserError:
        """Values that do not go together, and what to change."""
        asked = ", ".join(f"{axis} {' '.join(map(shown, values))}" for axis, values in wanted.items())
        changes = []
        for axis in wanted:
            rest = {other: values for other, values in wanted.items() if other != axis}
            if others := dict.fromkeys(shown(point[axis]) for point in self.points(rest)):
                changes.append(f"{axis} {', '.join(others)}")
        found = f"; with the rest of it there is {', or '.join(changes)}" if changes else ""
        return UserError(f"{self.name} has no cell for {asked}{found}")
