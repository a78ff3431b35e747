"""Tables in Markdown, from the ledger alone."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from refilled.evaluation import Spread, spread
from refilled.suite.cell import Cell
from refilled.suite.ledger import Ledger
from refilled.suite.table import Point, Table
from refilled.suite.tiny import tiny_table


def render(table: Table, ledger: Ledger, seeds: int = 3, command: str = "", *, tiny: bool = False) -> str:
    """One Markdown page: what was measured, beside what was published, and the gain over the student alone.

    Args:
        table: which one.
        ledger: where the numbers come from.
        seeds: seeds 0 to this less one are looked for; a cell with fewer says how many it has.
        command: how the page is made, for its foot.
        tiny: look for the tiny cells instead.
    """
    if tiny:
        table = tiny_table(table)
    axes = dict(table.axes)
    *others, row_axis, column_axis = axes
    parts = [f"# {table.name}", "", table.title + ".", "", f"Paper: {table.source}.", ""]
    found: list[dict[str, Any]] = []
    for values in itertools.product(*(axes[name] for name in others)):
        fixed = dict(zip(others, values))
        lines, used = _grid(table, ledger, seeds, fixed, row_axis, column_axis)
        if used:
            heading = ", ".join(f"{name} {value}" for name, value in fixed.items())
            parts += ([f"## {heading}", ""] if heading else []) + [*lines, ""]
            found += used
    if not found:
        parts += ["Nothing has been measured yet.", ""]
    parts += _legend(table, found, seeds)
    if command:
        parts += [f"Made by `{command}`.", ""]
    return "\n".join(parts)


def _grid(
    table: Table, ledger: Ledger, seeds: int, fixed: Mapping[str, Any], row_axis: str, column_axis: str
) -> tuple[list[str], list[dict[str, Any]]]:
    """Lines of one table, and the records in it; rows and columns without any number are left out."""
    rows, columns = table.axes[row_axis], table.axes[column_axis]
    texts: dict[tuple[Any, Any], str] = {}
    used: list[dict[str, Any]] = []
    for row in rows:
        for column in columns:
            point = {**fixed, row_axis: row, column_axis: column}
            records = _records(table.cell(point), ledger, seeds)
            if records:
                used += records
                texts[row, column] = _text(table, ledger, seeds, point, records)
    columns = tuple(column for column in columns if any((row, column) in texts for row in rows))
    lines = [
        "| " + " | ".join([row_axis, *(f"{column_axis} {_name(column)}" for column in columns)]) + " |",
        "| --- |" + " --- |" * len(columns),
    ]
    for row in rows:
        if any((row, column) in texts for column in columns):
            cells = (texts.get((row, column), "") for column in columns)
            lines.append("| " + " | ".join([_name(row), *cells]) + " |")
    return lines, used


def _name(value: Any) -> str:
    return "all" if value is None else str(value)


def _records(cell: Cell | None, ledger: Ledger, seeds: int) -> list[dict[str, Any]]:
    return ledger.find(cell.with_seed(seed) for seed in range(seeds)) if cell is not None else []


def _text(table: Table, ledger: Ledger, seeds: int, point: Point, records: list[dict[str, Any]]) -> str:
    """``77.35 ± 0.51 (paper 76.66), -0.05``: ours, the published number, the gain over the student alone."""
    measured = _spread(records, table.measured(point))
    text = f"{measured.mean:.2f}"
    if len(records) > 1:
        text += f" ± {measured.std:.2f}"
    if len(records) < seeds:
        text += f" [{len(records)}]"
    paper = table.published(point)
    text += f" (paper {paper:.2f})" if paper is not None else ""
    gain = _gain(table, ledger, seeds, point, records)
    return text + (f", {gain:+.2f}" if gain is not None else "")


def _gain(
    table: Table, ledger: Ledger, seeds: int, point: Point, records: list[dict[str, Any]]
) -> float | None:
    alone = table.alone(point) if table.alone is not None else None
    cell = table.cell(point)
    if alone is None or cell is None or cell.key == alone.key:
        return None
    by_seed = {r["cell"]["seed"]: r for r in _records(alone, ledger, seeds)}
    shared = [(r, by_seed[r["cell"]["seed"]]) for r in records if r["cell"]["seed"] in by_seed]
    if not shared:
        return None
    measure = table.measured(point)
    return 100 * sum(a[measure] - b[measure] for a, b in shared) / len(shared)


def _spread(records: list[dict[str, Any]], measure: str) -> Spread:
    return spread([100 * record[measure] for record in records])


def _legend(table: Table, found: list[dict[str, Any]], seeds: int) -> list[str]:
    if not found:
        return []
    devices = sorted({record["device"] for record in found})
    commits = sorted({record["commit"] for record in found})
    epochs = sorted({record["epochs"] for record in found} - {0})
    what = "Accuracy of the nearest class mean" if table.measure == "ncm" else "Accuracy"
    gain = (
        " After the comma: the gain over the student alone with the same total number of epochs and the "
        "same seeds."
        if table.alone
        else ""
    )
    lines = [
        f"{what} on test images in percent, at the last epoch; mean ± standard deviation of {seeds} seeds, "
        f"[n] where only n are there; beside it the published number.{gain}",
        "",
    ]
    if table.note:
        lines += [table.note, ""]
    runs = {record["key"]: record["seconds"] for record in found}
    return [
        *lines,
        f"{len(runs)} runs of {_listing(epochs)} epochs on {_listing(devices)}, commit {_listing(commits)}, "
        f"{sum(runs.values()) / 60:.0f} minutes of training.",
        "",
    ]


def _listing(values: Sequence[Any]) -> str:
    return " and ".join(str(value) for value in values) if values else "no"
