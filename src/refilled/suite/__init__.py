"""The paper's experiments: each table as data, a way to run its cells, and a ledger of what was measured."""

from refilled.suite.cell import Cell, TeacherCell
from refilled.suite.choices import tune_table
from refilled.suite.figures import FIGURES, Studio, make_figures
from refilled.suite.judging import SEEDS, OverSeeds, OverTasks
from refilled.suite.ledger import Ledger
from refilled.suite.pages import render
from refilled.suite.places import LEDGER, WORK, Places, elsewhere
from refilled.suite.run import Bench
from refilled.suite.table import Point, Table, shown
from refilled.suite.tables import TABLES, get_table
from refilled.suite.task_cell import TaskCell
from refilled.suite.tiny import cells_of, tiny_cell

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
