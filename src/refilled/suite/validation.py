"""Data that ends at its validation images: what measures a student finds those where its test images were.

A teacher that learned from the same data is trained anew without those images: one that had seen them knows
more of them than of any test image. What is found on validation is for choosing, not for publishing.
"""

from dataclasses import replace
from typing import Any

from refilled.data import Splits
from refilled.errors import UserError
from refilled.methods import get_method
from refilled.runs.prepare import OF_OPENING, read_splits, read_unlabelled
from refilled.runs.settings import sort_settings
from refilled.suite.cell import Cell, TeacherCell, class_range, pairs
from refilled.suite.places import Places


def without_test(cell: Cell, places: Places) -> Splits:
    """The data of a cell without its test images."""
    _, data_settings, _ = sort_settings(get_method(cell.method), cell.arguments())
    data = places.data_spec(cell.data)
    splits = read_splits(data, data_settings, cell.seed)
    if not len(splits.val):
        raise UserError(f"{splits.name} has too few training images to hold some out for validation")
    return replace(splits, test=splits.val, unlabelled=read_unlabelled(data, data_settings, splits))


def blind(cell: Cell) -> Cell:
    """The cell with a teacher that has not seen the images that the cell holds out; nor, where its classes
    are kept, as many of its own: the student is judged on those too."""
    teacher = cell.teacher
    if teacher is None or not (cell.keeps or _meet(cell, teacher)):
        return cell
    return replace(cell, teacher=_without(teacher, dict(cell.settings)["val_fraction"]))


def _without(teacher: TeacherCell, val_fraction: float) -> TeacherCell:
    settings = pairs(**(dict(teacher.settings) | {"val_fraction": val_fraction}))
    above = teacher.taught_by and _without(teacher.taught_by, val_fraction)
    return replace(teacher, settings=settings, taught_by=above)


def _meet(cell: Cell, teacher: TeacherCell) -> bool:
    """Whether they share images: other data, or ranges of one order that are apart, have none in common."""
    if cell.data != teacher.data:
        return False
    ranges = [class_range(classes) for classes in (cell.classes, teacher.classes)]
    if cell.class_order != teacher.class_order or None in ranges:
        return True
    (start, end), (other_start, other_end) = ranges  # type: ignore[misc]
    return start < other_end and other_start < end


def once_open(arguments: dict[str, Any]) -> dict[str, Any]:
    """A cell's settings, without those that have done their work when the data is open."""
    done = (*OF_OPENING, "unlabelled", "unlabelled_classes")
    return {name: value for name, value in arguments.items() if name not in done}
