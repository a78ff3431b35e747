"""Tables in Markdown, from the ledger alone."""

import itertools
import json
from collections.abc import Mapping
from typing import Any

from refilled.suite.judging import Judge
from refilled.suite.kinds import AnyCell
from refilled.suite.ledger import Ledger
from refilled.suite.pages.gains import against_published
from refilled.suite.pages.grid import grid
from refilled.suite.table import Point, Table, shown
from refilled.suite.tiny import tiny_table
from refilled.suite.wording import listed

_WHAT = {"ncm": "Accuracy of the nearest class mean"}
"""Of a measure that is not the usual one."""


def render(
    table: Table, ledger: Ledger, judge: Judge | None = None, command: str = "", *, tiny: bool = False
) -> str:
    """One Markdown page: what was measured, beside what was published, and the gain over the student alone.

    Args:
        table: which one.
        ledger: where the numbers come from.
        judge: how many seeds or tasks are looked for, a cell with fewer says so; None: the usual number.
        command: how the page is made, for its foot.
        tiny: look for the tiny cells instead.
    """
    judge = judge or table.judge(tiny=tiny)
    if tiny:
        table = tiny_table(table)
    axes = dict(table.axes)
    others = list(axes)[:-2]
    parts = [f"# {table.name}", "", table.title + ".", "", f"Paper: {table.source}.", ""]
    if tiny:
        parts += ["**Tiny**: digits, small networks and a few steps, only to see that it runs.", ""]
    found: list[dict[str, Any]] = []
    for values in itertools.product(*(axes[name] for name in others)):
        fixed = dict(zip(others, values))
        lines, used = _measured(table, ledger, judge, fixed)
        if used:
            heading = ", ".join(f"{name} {shown(value)}" for name, value in fixed.items())
            parts += ([f"## {heading}", ""] if heading else []) + [*lines, ""]
            compared = against_published(table, ledger, judge, fixed)
            parts += [*compared, ""] if compared else []
            found += used
    if not found:
        parts += ["Nothing has been measured yet.", ""]
    parts += _legend(table, found, judge, ledger)
    if command:
        parts += [f"Made by `{command}`.", ""]
    return "\n".join(parts)


def _measured(
    table: Table, ledger: Ledger, judge: Judge, fixed: Mapping[str, Any]
) -> tuple[list[str], list[dict[str, Any]]]:
    """Lines of one table, and the records in it."""
    texts: dict[tuple[Any, Any], str] = {}
    used: list[dict[str, Any]] = []
    for row in table.axes[table.row]:
        for column in table.axes[table.column]:
            point = {**fixed, table.row: row, table.column: column}
            records = _records(table.cell(point), ledger, judge, table.measured(point))
            if records:
                used += records
                texts[row, column] = _text(table, ledger, judge, point, records)
    return grid(table, texts), used


def _records(cell: AnyCell | None, ledger: Ledger, judge: Judge, measure: str) -> list[dict[str, Any]]:
    return ledger.find(judge.runs(cell), measure) if cell is not None else []


def _text(table: Table, ledger: Ledger, judge: Judge, point: Point, records: list[dict[str, Any]]) -> str:
    """``77.35 ± 0.51 (paper 76.66), -0.05``: ours, the published number, the gain over the student alone."""
    text = judge.number(records, table.measured(point))
    paper = table.published(point)
    text += f" (paper {paper:.2f})" if paper is not None else ""
    gain = _gain(table, ledger, judge, point, records)
    return text + (f", {gain}" if gain is not None else "")


def _gain(
    table: Table, ledger: Ledger, judge: Judge, point: Point, records: list[dict[str, Any]]
) -> str | None:
    alone = table.alone(point) if table.alone is not None else None
    cell = table.cell(point)
    if alone is None or cell is None or cell.key == alone.key:
        return None
    measure = table.measured(point)
    return judge.gain(records, _records(alone, ledger, judge, measure), measure)


def _legend(table: Table, found: list[dict[str, Any]], judge: Judge, ledger: Ledger) -> list[str]:
    if not found:
        return []
    devices = sorted({record["device"] for record in found})
    commits = sorted({record["commit"] for record in found})
    what = _WHAT.get(table.measure if isinstance(table.measure, str) else "", "Accuracy")
    what += " on validation images" if found[0]["cell"].get("on_validation") else " on test images"
    lines = [judge.legend(what) + (f" {judge.gain_legend()}" if table.alone else ""), ""]
    if table.note:
        lines += [table.note, ""]
    lines += _teachers(found, ledger)
    runs = list({record["key"]: record for record in found}.values())
    return [
        *lines,
        f"{judge.effort(runs)} on {listed(devices)}, commit {listed(commits)}, "
        f"{sum(record['seconds'] for record in runs) / 60:.0f} minutes of training.",
        "",
    ]


def _teachers(found: list[dict[str, Any]], ledger: Ledger) -> list[str]:
    """Who taught, and how well each knows its own classes; one that was trained again has several numbers."""
    teachers = [record["cell"].get("teacher") for record in found]
    described = {json.dumps(teacher, sort_keys=True): teacher for teacher in teachers if teacher}
    told = []
    for teacher in described.values():
        records = ledger.filed(teacher)
        numbers = listed(f"{100 * record['test_accuracy']:.2f}" for record in records)
        classes = f"classes {teacher['classes']}" if teacher["classes"] else "all classes"
        held_out = teacher["settings"].get("data", {}).get("val_fraction", 0)
        part = f", {100 * held_out:.0f} % of the images held out" if held_out else ""
        told.append(f"{teacher['student']}, {classes}{part}: {numbers or 'unknown'} %")
    if not told:
        return []
    again = " (trained again where there are several)" if any(" and " in one for one in told) else ""
    return [f"Teachers, on test images of their own classes{again}: {'; '.join(dict.fromkeys(told))}.", ""]
