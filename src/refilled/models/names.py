"""Class names as people and checkpoints give them, made into label spaces."""

from collections.abc import Iterable, Sequence

from refilled.errors import UserError
from refilled.labels import LabelSpace, key

Classes = LabelSpace | Sequence[str] | int
"""A label space, names in the order of the labels, or just how many there are."""


def numbered(count: int) -> LabelSpace:
    """Names for classes that nobody named: ``class 0``, ``class 1``…"""
    return LabelSpace(f"class {label}" for label in range(count))


def as_label_space(classes: Classes) -> LabelSpace:
    """What a caller gave as classes; a number becomes ``class 0``, ``class 1``…"""
    if isinstance(classes, str):
        raise UserError(f"classes are a list of names or their number, not the one text {classes!r}")
    space = numbered(classes) if isinstance(classes, int) else LabelSpace(classes)
    if not len(space):
        raise UserError("a model needs at least one class")
    return space


def made_unique(names: Iterable[str]) -> LabelSpace:
    """A checkpoint's own names; the second ``crane`` of ImageNet becomes ``crane (2)``."""
    taken: set[str] = set()
    unique = []
    for name in map(str, names):
        candidate, copy = name, 1
        while key(candidate) in taken:
            copy += 1
            candidate = f"{name} ({copy})"
        taken.add(key(candidate))
        unique.append(candidate)
    return LabelSpace(unique)
