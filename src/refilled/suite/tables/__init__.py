"""The tables as data, the paper's and ours: what they say of a cell is all that a runner needs to know."""

from refilled.errors import unknown
from refilled.suite.table import Table
from refilled.suite.tables import (
    cifar100,
    cub,
    fewshot,
    fewshot_choices,
    fewshot_embedding,
    incremental,
    recipes,
    small,
    sweeps,
)

_ALL = (
    *cifar100.TABLES,
    *cub.TABLES,
    *sweeps.TABLES,
    incremental.CUB_INCREMENTAL,
    fewshot.FEW_SHOT,
    fewshot_choices.FEW_SHOT_CHOICES,
    fewshot_embedding.FEW_SHOT_EMBEDDING,
    recipes.TABLE,
    *small.TABLES,
)
TABLES: dict[str, Table] = {table.name: table for table in _ALL}


def get_table(name: str) -> Table:
    """The table of that name; an unknown name is refused with the nearest known one."""
    if name not in TABLES:
        raise unknown("table", name, TABLES)
    return TABLES[name]


__all__ = ["TABLES", "get_table"]
