"""The kinds of cells there are: a training judged on test images, a method judged on many tasks."""

from typing import Any

from refilled.suite.cell import Cell, hashed
from refilled.suite.task_cell import TaskCell

AnyCell = Cell | TaskCell
_KINDS: dict[str, type[Cell] | type[TaskCell]] = {kind.kind: kind for kind in (Cell, TaskCell)}


def key_of(described: dict[str, Any]) -> str:
    """Key of a cell of any kind that was described by its ``to_json``, now or by an earlier version.

    A description without a kind is a training: the first ledgers knew no other.
    """
    kind = described.get("kind", Cell.kind)
    if kind not in _KINDS:
        raise ValueError(f"unknown kind of cell {kind!r}")
    return hashed(_KINDS[kind].known_by(described))
