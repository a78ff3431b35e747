"""Accuracy against the number of training images of each class."""

from functools import partial
from typing import Any

from refilled.suite.figures.figure import Figure, Studio
from refilled.suite.figures.lines import draw_panels, panels, some
from refilled.suite.tables.cifar100 import SHOTS


def numbers(studio: Studio) -> dict[str, Any]:
    """A panel for each student and overlap; the student alone is one of the lines."""
    return some(studio, panels(studio, SHOTS, "shots", "method"), SHOTS.name)


FIGURE = Figure("shots", "Accuracy against images per class", numbers, partial(draw_panels, logarithmic=True))
