"""What a record of the ledger must have, so that pages can be made of it."""

import math
from collections.abc import Callable
from typing import Any

from refilled.suite.cell import Cell
from refilled.suite.task_cell import TaskCell


def _is_share(value: Any) -> bool:
    return isinstance(value, float) and 0 <= value <= 1


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_Check = tuple[Callable[[Any], bool], str]
_SHARE: _Check = (_is_share, "a share from 0 to 1")
_NUMBER: _Check = (_is_number, "a number")
_COUNT: _Check = (_is_count, "a whole number")
_TEXT: _Check = (_is_text, "a text")
_WANTED: dict[str, dict[str, _Check]] = {
    Cell.kind: {"seconds": _NUMBER, "epochs": _COUNT, "device": _TEXT, "commit": _TEXT},
    TaskCell.kind: {
        "seconds": _NUMBER, "tasks_per_second": _NUMBER, "first": _COUNT, "tasks": _COUNT, "right": _TEXT,
        "device": _TEXT, "commit": _TEXT,
    },
}  # fmt: skip
_SHARES = ("ncm", "one_nn", "joint_old", "joint_new", "joint_all", "joint_harmonic")
"""Shares that a training's record need not have, or not know."""


def check_record(record: dict[str, Any]) -> None:
    """Raise a ValueError that says what is missing, or is not what it should be."""
    described = record["cell"]
    judged = "val_accuracy" if described.get("on_validation") else "test_accuracy"
    kind = described.get("kind", Cell.kind)
    wanted = (
        {judged: _SHARE} | _WANTED[kind] | {name: _SHARE for name in _SHARES if record.get(name) is not None}
    )
    for name, (holds, what) in wanted.items():
        if name not in record:
            raise ValueError(f"{name} is missing")
        if not holds(record[name]):
            raise ValueError(f"{name} is {record[name]!r}, not {what}")
    if kind == TaskCell.kind and (
        len(record["right"].split()) != record["tasks"]
        or not record["right"].replace(" ", "").isdigit()
        or not record["tasks_per_second"]
    ):
        raise ValueError(f"right is not a whole number for each of {record['tasks']} tasks")
