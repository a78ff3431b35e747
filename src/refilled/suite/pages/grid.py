"""A table in Markdown, with the rows and columns that have anything in them."""

from collections.abc import Mapping
from typing import Any

from refilled.suite.table import Table, shown


def grid(table: Table, texts: Mapping[tuple[Any, Any], str]) -> list[str]:
    """Lines for texts by (value of the row's axis, value of the column's), in the order of the axes."""
    rows = [row for row in table.axes[table.row] if any(row == own for own, _ in texts)]
    columns = [column for column in table.axes[table.column] if any(column == own for _, own in texts)]
    lines = [
        "| " + " | ".join([table.row, *(f"{table.column} {shown(column)}" for column in columns)]) + " |",
        "| --- |" + " --- |" * len(columns),
    ]
    for row in rows:
        cells = (texts.get((row, column), "") for column in columns)
        lines.append("| " + " | ".join([shown(row), *cells]) + " |")
    return lines
