"""Accuracy against the overlap of the teacher's and the student's classes, for every method and student."""

from typing import Any

from refilled.suite.figures.figure import Figure, Studio
from refilled.suite.figures.lines import draw_panels, panels, some
from refilled.suite.tables import cifar100, cub

_TABLES = {"CIFAR-100": cifar100.CIFAR100_GKD, "CUB": cub.CUB_GKD}


def numbers(studio: Studio) -> dict[str, Any]:
    """Panels of both data sets, one for each student that the ledger knows."""
    found = [
        panel | {"title": f"{data}, {panel['title']}", "x": "overlap in %"}
        for data, table in _TABLES.items()
        for panel in panels(studio, table, "overlap", "method")
    ]
    return some(studio, found, *(table.name for table in _TABLES.values()))


FIGURE = Figure("overlap", "Accuracy against the overlap of classes", numbers, draw_panels)
