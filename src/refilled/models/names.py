"""Class names as people and checkpoints give them, made into label spaces."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

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


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; anything else is refused, naming the file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path} as JSON: {error}") from error
    if not isinstance(data, dict):
        raise UserError(f"{path} should hold a JSON object, not a {type(data).__name__}")
    return data
