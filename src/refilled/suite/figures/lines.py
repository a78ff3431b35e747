"""Lines of accuracy from the ledger: what the figures that train nothing have in common."""

import itertools
from typing import Any

from refilled.evaluation import spread
from refilled.suite.figures.figure import NothingToShow, Studio
from refilled.suite.kinds import AnyCell
from refilled.suite.table import Table

ALONE = "student alone"
_COLUMNS = 4
_ROW_HEIGHT, _COLUMN_WIDTH = 3.2, 3.6


def panels(studio: Studio, table: Table, x: str, line: str | None = None) -> list[dict[str, Any]]:
    """A panel for each combination of the other axes that has numbers, with a line for each method.

    Args:
        studio: where the ledger is.
        table: which one.
        x: the axis along which accuracy is shown.
        line: the axis whose values are lines; None: one line, and the student alone beside it.

    Returns:
        ``[{"title", "x", "lines": {name: [{"x", "mean", "std", "runs"}]}}]``, accuracies in percent.
    """
    table = studio.table(table)
    others = [axis for axis in table.axes if axis not in (x, line)]
    found = []
    for values in itertools.product(*(table.axes[axis] for axis in others)):
        fixed = dict(zip(others, values))
        lines: dict[str, list[dict[str, Any]]] = {}
        for name in table.axes[line] if line else ("with a teacher",):
            for place in table.axes[x]:
                point = fixed | {x: place} | ({line: name} if line else {})
                _add(lines, str(name), place, _accuracy(studio, table.measured(point), table.cell(point)))
                if line is None and table.alone is not None:
                    _add(lines, ALONE, place, _accuracy(studio, table.measured(point), table.alone(point)))
        if lines.keys() - {ALONE}:
            title = ", ".join(f"{axis} {value}" for axis, value in fixed.items())
            found.append({"title": title, "x": x, "lines": lines})
    return found


def some(studio: Studio, found: list[dict[str, Any]], *tables: str) -> dict[str, Any]:
    """The panels as a figure's numbers, without those of single points where others have lines; none at all
    is refused, naming the commands that make them."""
    if not found:
        commands = " or ".join(f"`{studio.bench(table)}`" for table in tables)
        raise NothingToShow(f"{studio.ledger.path} has no numbers for this; run {commands}")
    with_lines = [panel for panel in found if any(len(points) > 1 for points in panel["lines"].values())]
    return {"panels": with_lines or found}


def _add(lines: dict[str, list[dict[str, Any]]], name: str, x: Any, point: dict[str, Any] | None) -> None:
    if point is not None:
        lines.setdefault(name, []).append({"x": x} | point)


def _accuracy(studio: Studio, measure: str, cell: AnyCell | None) -> dict[str, Any] | None:
    """Mean and deviation in percent over the seeds that are there; None: no seed is."""
    if cell is None:
        return None
    records = studio.ledger.find((cell.with_seed(seed) for seed in range(studio.seeds)), measure)
    if not records:
        return None
    over = spread([100 * record[measure] for record in records])
    deviation = round(over.std, 3) if over.runs > 1 else None
    return {"mean": round(over.mean, 3), "std": deviation, "runs": over.runs}


def draw_panels(numbers: dict[str, Any], canvas: Any, *, logarithmic: bool = False) -> None:
    """Draw what :func:`panels` found; the same name has the same colour in all of them."""
    found = numbers["panels"]
    columns = min(_COLUMNS, len(found))
    rows = -(-len(found) // columns)
    canvas.set_size_inches(max(_COLUMN_WIDTH * columns, 5.0), _ROW_HEIGHT * rows + 0.8)
    names = list(dict.fromkeys(name for panel in found for name in panel["lines"]))
    axes = canvas.subplots(rows, columns, squeeze=False).flatten()
    handles = {}
    for axis, panel in zip(axes, found):
        for name, points in panel["lines"].items():
            style: dict[str, Any] = {"color": f"C{names.index(name) % 10}", "marker": "o", "markersize": 3}
            if name == ALONE:
                style |= {"color": "black", "linestyle": "--"}
            elif names.index(name) >= 10:
                style |= {"linestyle": ":"}  # there are ten colours
            handles[name] = axis.errorbar(
                [point["x"] for point in points],
                [point["mean"] for point in points],
                yerr=[point["std"] or 0.0 for point in points],
                capsize=2,
                **style,
            )
        if logarithmic:
            places = sorted({point["x"] for points in panel["lines"].values() for point in points})
            axis.set_xscale("log")
            axis.minorticks_off()
            axis.set_xticks(places, [f"{place:g}" for place in places])
        axis.set(title=panel["title"], xlabel=panel["x"], ylabel="accuracy, %")
    for axis in axes[len(found) :]:
        axis.remove()
    canvas.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize="small")
