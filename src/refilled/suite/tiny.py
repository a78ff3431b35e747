"""Any cell in a second or two: the same method and shape of the problem, on digits with small networks."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from refilled.suite.cell import Cell, TeacherCell, pairs
from refilled.suite.judging import Judge
from refilled.suite.kinds import AnyCell
from refilled.suite.table import Point, Table
from refilled.suite.task_cell import TaskCell

_CLASSES = {"cifar100": 100, "cub": 200, "dogs": 120, "miniimagenet": 100}
_KEPT = (
    "strength", "imitation", "imitation_new", "embedding_share", "fade", "max_impostors", "group", "weight",
    "comparison_scale", "lr", "keep_teacher_classes", "keep_weight", "keep_level", "mixtures",
    "head_same", "head_share", "head_unlabelled", "head_tau", "head_fade",
)  # fmt: skip
_AS_THE_TEACHER = ("fine-tune", "ewc")  # need its own architecture
_SHOTS = 8


_TASK_SHOTS, _TASK_QUERIES, _TASK_VIEWS = 5, 5, 2
_SEEN, _UNSEEN = "0:5", "5:10"
_STEPS = {
    "steps": 2, "per_class": 2, "episodes": 2, "queries": _TASK_QUERIES, "epochs": 1, "iterations": 2,
    "inner_steps": 1, "task_steps": 2,
}  # fmt: skip

Kind = TypeVar("Kind", bound=AnyCell)


def tiny_cell(cell: Kind) -> Kind:
    """The cell on digits, in its own kind."""
    return _SHRINK[cell.kind](cell)


def _tiny_training(cell: Cell) -> Cell:
    """Its classes scaled to ten, two epochs, a few images."""
    kept = {name: value for name, value in cell.settings if name in _KEPT}
    others = dict(cell.settings).get("unlabelled_classes")
    if others:
        kept["unlabelled_classes"] = _scaled(others, cell.data)
    return replace(
        cell,
        data="digits",
        student="wrn-10-1" if cell.method in _AS_THE_TEACHER else "resnet-8",
        teacher=_tiny_teacher(cell.teacher) if cell.teacher else None,
        classes=_scaled(cell.classes, cell.data),
        class_order="default",
        shots=(cell.shots and min(cell.shots, _SHOTS)) or _SHOTS,
        settings=pairs(epochs=2, batch_size=16, val_fraction=0.3 if cell.on_validation else 0.0, **kept),
    )


def _tiny_tasks(cell: TaskCell) -> TaskCell:
    """Five digits are seen, tasks are of the other five; two steps of everything.

    Ten digits leave none for choosing settings on: tiny searches look at the seen ones.
    """
    own = cell.resolved()
    kept = {name: value for name, value in cell.settings if name not in _STEPS}
    same = cell.teacher is not None and cell.teacher.network == cell.network.network
    network, other = (_tiny_teacher(cell.network, spec, _SEEN) for spec in ("convnet-2", "wrn-10-1"))
    return replace(
        cell,
        data="digits",
        classes=_UNSEEN,
        val_classes=_SEEN,
        network=network,
        teacher=cell.teacher and (network if same else other),
        shots=min(cell.shots, _TASK_SHOTS),
        queries=_TASK_QUERIES,
        augment="crop",
        views=_TASK_VIEWS,
        settings=pairs(**kept, **{name: value for name, value in _STEPS.items() if name in own}),
    )


_SHRINK: dict[str, Callable[[Any], Any]] = {Cell.kind: _tiny_training, TaskCell.kind: _tiny_tasks}


def cells_of(
    table: Table, where: Mapping[str, tuple[Any, ...]], judge: Judge, *, tiny: bool = False
) -> list[AnyCell]:
    """The cells of a table, or of the part of it that was asked for, each once; tiny ones on digits.

    Args:
        table: which one.
        where: values of its axes.
        judge: how many seeds or tasks.
        tiny: on digits.
    """
    shown = tiny_table(table) if tiny else table
    cells = []
    for point in shown.points(where):
        cells.append(shown.cell(point))
        if shown.with_alone and shown.alone is not None:
            cells.append(shown.alone(point))
    runs = [judge.runs(cell) for cell in cells if cell is not None]
    by_seed = [cell for together in zip(*runs) for cell in together]
    return list({cell.key: cell for cell in by_seed}.values())


def tiny_table(table: Table) -> Table:
    """The table with tiny cells; nothing was published for those."""
    alone = _shrunk(table.alone) if table.alone else None
    return replace(table, cell=_shrunk(table.cell), alone=alone, published=lambda point: None)


def _shrunk(cell: Callable[[Point], AnyCell | None]) -> Callable[[Point], AnyCell | None]:
    def shrunk(point: Point) -> AnyCell | None:
        found = cell(point)
        return tiny_cell(found) if found is not None else None

    return shrunk


def _tiny_teacher(teacher: TeacherCell, network: str = "wrn-10-1", classes: str | None = None) -> TeacherCell:
    return TeacherCell(
        network=network,
        data="digits",
        classes=classes or _scaled(teacher.classes, teacher.data),
        settings=pairs(epochs=2, batch_size=64, val_fraction=0.0, shots=32),
        method=teacher.method,
        taught_by=teacher.taught_by and _tiny_teacher(teacher.taught_by, classes=classes),
    )


def _scaled(classes: str | None, data: str) -> str | None:
    if classes is None:
        return None
    start, stop = (round(int(end) * 10 / _CLASSES[data]) for end in classes.split(":"))
    return f"{start}:{max(stop, start + 2)}"
