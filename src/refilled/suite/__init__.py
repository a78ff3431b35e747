"""The paper's experiments: each table as data, a way to run its cells, and a ledger of what was measured."""

from refilled.errors import unknown
from refilled.suite import (
    cifar100,
    cub,
    fewshot,
    fewshot_choices,
    fewshot_embedding,
    incremental,
    recipes,
    sweeps,
)
from refilled.suite.cell import Cell, TeacherCell
from refilled.suite.figures import FIGURES, Studio, make_figures
from refilled.suite.judging import SEEDS, OverSeeds, OverTasks
from refilled.suite.ledger import Ledger
from refilled.suite.places import LEDGER, WORK, Places, elsewhere
from refilled.suite.render import render
from refilled.suite.run import Bench
from refilled.suite.table import Point, Table, shown
from refilled.suite.task_cell import TaskCell
from refilled.suite.tiny import cells_of, tiny_cell
from refilled.suite.tune import tune_table

_ALL = (
    *cifar100.TABLES,
    *cub.TABLES,
    *sweeps.TABLES,
    incremental.CUB_INCREMENTAL,
    fewshot.FEW_SHOT,
    fewshot_choices.FEW_SHOT_CHOICES,
    fewshot_embedding.FEW_SHOT_EMBEDDING,
    *recipes.TABLES,
)
TABLES: dict[str, Table] = {table.name: table for table in _ALL}


def get_table(name: str) -> Table:
    """The table of that name; an unknown name is refused with the nearest known one."""
    if name not in TABLES:
        raise unknown("table", name, TABLES)
    return TABLES[name]


__all__ = [
    "FIGURES",
    "LEDGER",
    "SEEDS",
    "TABLES",
    "WORK",
    "Bench",
    "Cell",
    "Ledger",
    "OverSeeds",
    "OverTasks",
    "Places",
    "Point",
    "Studio",
    "Table",
    "TaskCell",
    "TeacherCell",
    "cells_of",
    "elsewhere",
    "get_table",
    "make_figures",
    "render",
    "shown",
    "tiny_cell",
    "tune_table",
]
