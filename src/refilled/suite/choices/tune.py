"""Choices on validation: a search of the settings of a table's cells that never sees what it is judged on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from refilled.errors import UserError
from refilled.files import write_json
from refilled.suite.cell import Cell
from refilled.suite.choices.search import Search
from refilled.suite.choices.task_trials import TaskTrials
from refilled.suite.choices.training_trials import TrainingTrials
from refilled.suite.extras import library
from refilled.suite.judging import Judge
from refilled.suite.ledger import commit
from refilled.suite.run import Bench
from refilled.suite.table import Point, Table
from refilled.suite.task_cell import TaskCell
from refilled.suite.tiny import tiny_table

_TRIALS: dict[str, Any] = {Cell.kind: TrainingTrials, TaskCell.kind: TaskTrials}
"""What tries settings of a kind of cell."""


def tune_table(
    table: Table,
    where: Mapping[str, tuple[Any, ...]],
    bench: Bench,
    folder: Path,
    trials: int,
    judge: Judge,
    epochs: int | None = None,
    *,
    tiny: bool = False,
) -> list[Path]:
    """Search the settings of each chosen point of a table; points with nothing to search are left out.

    Args:
        table: which one; its ``measure`` is what is made large.
        where: which points.
        bench: trains the teachers, and says where, with what and how many at once.
        folder: where the choices are written, ``TABLE-….json`` for each point.
        trials: of each point, those made before included.
        judge: how many seeds or tasks each trial is the mean of.
        epochs: of a trial that is a training; None: those of the table.
        tiny: on digits, in seconds.

    Returns:
        The files written.
    """
    if trials < 1:
        raise UserError(f"a search needs at least 1 trial, not {trials}")
    library("optuna", "tune", "tuning")  # before a teacher is trained
    shown = tiny_table(table) if tiny else table
    searched: list[tuple[Point, Any]] = []
    for point in shown.points(where):
        cell = shown.cell(point)
        assert cell is not None, "points are those with a cell"
        kind = _TRIALS[cell.kind]
        if kind.space_of(cell):
            searched.append((point, kind(cell, bench, judge, table.measured(point), epochs)))
        else:
            bench.say(f"{cell.describe()}: nothing to tune")
    if not searched:
        raise UserError(f"nothing that was chosen of {table.name} has a setting to tune")
    bench.check([tried.cell for _, tried in searched])
    written = []
    for point, tried in searched:
        bench.make_teachers([tried.cell])
        chosen = Search(tried, bench.desk.places.work / "tuned", bench.say).run(trials)
        path = folder / f"{_file_name(table, point)}.json"
        write_json(path, {"table": table.name, "point": dict(point)} | chosen | {"commit": commit()})
        bench.say(f"{path} is written")
        written.append(path)
    return written


def _file_name(table: Table, point: Point) -> str:
    words = (str(value) for value in (table.name, *point.values()))
    return "-".join("".join(c if c.isalnum() or c in "-._" else "-" for c in word) for word in words)
