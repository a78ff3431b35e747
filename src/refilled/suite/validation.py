"""Data that ends at its validation images: what measures a student finds those where its test images were.

The teacher is the cell's own. It may have been trained on all images of its classes, the held-out ones among
them: what is found on validation is for choosing, not for publishing.
"""

from dataclasses import replace
from typing import Any

from refilled.data import Splits
from refilled.errors import UserError
from refilled.methods import get_method
from refilled.runs.prepare import OF_OPENING, read_splits, read_unlabelled
from refilled.runs.settings import sort_settings
from refilled.suite.cell import Cell
from refilled.suite.places import Places


def without_test(cell: Cell, places: Places) -> Splits:
    """The data of a cell without its test images."""
    _, data_settings, _ = sort_settings(get_method(cell.method), cell.arguments())
    data = places.data_spec(cell.data)
    splits = read_splits(data, data_settings, cell.seed)
    if not len(splits.val):
        raise UserError(f"{splits.name} has too few training images to hold some out for validation")
    return replace(splits, test=splits.val, unlabelled=read_unlabelled(data, data_settings, splits))


def once_open(arguments: dict[str, Any]) -> dict[str, Any]:
    """A cell's settings, without those that have done their work when the data is open."""
    done = (*OF_OPENING, "unlabelled", "unlabelled_classes")
    return {name: value for name, value in arguments.items() if name not in done}
