"""Accuracy against lambda, the strength of the teacher's term."""

from functools import partial
from typing import Any

from refilled.suite.figures.figure import Figure, Studio
from refilled.suite.figures.lines import draw_panels, panels, some
from refilled.suite.tables.sweeps import LAMBDA


def numbers(studio: Studio) -> dict[str, Any]:
    """A panel for each data set, the student alone as a line."""
    return some(studio, panels(studio, LAMBDA, "strength"), LAMBDA.name)


FIGURE = Figure(
    "strength",
    "Accuracy against the strength of the teacher's term",
    numbers,
    partial(draw_panels, logarithmic=True),
)
