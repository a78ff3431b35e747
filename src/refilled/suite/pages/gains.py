"""Gains over the student alone beside the published ones, and in words where ours are above and below."""

from collections.abc import Mapping
from typing import Any

from refilled.suite.judging import Judge, OverSeeds
from refilled.suite.ledger import Ledger
from refilled.suite.pages.grid import grid
from refilled.suite.table import Point, Table, shown
from refilled.suite.tables.rows import HALF

ALONE = "student"


def against_published(table: Table, ledger: Ledger, judge: Judge, fixed: Mapping[str, Any]) -> list[str]:
    """Lines for the points with these values: a small table and a sentence; none where nothing compares.

    Both gains are over the paper's student alone. It has the epochs of one stage where the table has such a
    row (``student-half``), else those of the whole training.
    """
    rows, columns = table.axes[table.row], table.axes[table.column]
    base = HALF if HALF in rows else ALONE
    if base not in rows or not isinstance(judge, OverSeeds):
        return []
    found = {}
    for row in rows:
        for column in columns:
            pair = _gains(table, ledger, judge, {**fixed, table.row: row, table.column: column}, base)
            if row not in (HALF, ALONE) and pair is not None:
                found[row, column] = pair
    if not found:
        return []
    half = ", which has half the epochs (at equal epochs: the table above)" if base == HALF else ""
    texts = {place: f"{ours:+.2f} (paper {paper:+.2f})" for place, (ours, paper) in found.items()}
    lines = [f"Gains over `{base}`{half}, ours and the published ones:", "", *grid(table, texts)]
    return [*lines, "", f"Above the published gain: {_named(found, True)}. Below: {_named(found, False)}."]


def _gains(
    table: Table, ledger: Ledger, judge: OverSeeds, point: Point, base: str
) -> tuple[float, float] | None:
    """Our gain and the published one, in points; None where one of the four numbers is missing."""
    beside = {**point, table.row: base}
    cells, papers = [table.cell(p) for p in (point, beside)], [table.published(p) for p in (point, beside)]
    if None in cells or None in papers:
        return None
    measure = table.measured(point)
    records, others = (ledger.find(judge.runs(cell), measure) for cell in cells if cell is not None)
    ours = judge.mean_gain(records, others, measure)
    published, theirs = papers
    if ours is None or published is None or theirs is None:
        return None
    return ours, published - theirs


def _named(found: Mapping[tuple[Any, Any], tuple[float, float]], above: bool) -> str:
    chosen: dict[str, list[str]] = {}
    for (row, column), (ours, paper) in found.items():
        if (ours >= paper) == above:
            chosen.setdefault(shown(row), []).append(shown(column))
    return "; ".join(f"{row} at {', '.join(where)}" for row, where in chosen.items()) or "none"
