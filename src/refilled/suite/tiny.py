"""Any cell in a second or two: the same method and shape of the problem, on digits with small networks."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from refilled.suite.cell import Cell, TeacherCell, pairs
from refilled.suite.table import Point, Table

_CLASSES = {"cifar100": 100, "cub": 200, "dogs": 120, "miniimagenet": 100}
_KEPT = (
    "strength", "max_impostors", "weight", "comparison_scale", "lr", "keep_teacher_classes", "keep_weight",
)  # fmt: skip
_AS_THE_TEACHER = ("fine-tune", "ewc")  # need its own architecture
_SHOTS = 8


def tiny_cell(cell: Cell) -> Cell:
    """The cell on digits: its classes scaled to ten, two epochs, a few images."""
    kept = {name: value for name, value in cell.settings if name in _KEPT}
    return replace(
        cell,
        data="digits",
        student="wrn-10-1" if cell.method in _AS_THE_TEACHER else "resnet-8",
        teacher=_tiny_teacher(cell.teacher) if cell.teacher else None,
        classes=_scaled(cell.classes, cell.data),
        class_order="default",
        shots=(cell.shots and min(cell.shots, _SHOTS)) or _SHOTS,
        settings=pairs(epochs=2, batch_size=16, val_fraction=0.0, **kept),
    )


def cells_of(
    table: Table, where: Mapping[str, tuple[Any, ...]], seeds: int, *, tiny: bool = False
) -> list[Cell]:
    """The cells of a table, or of the part of it that was asked for, seed by seed; tiny ones on digits."""
    cells = [table.cell(point) for point in table.points(where)]
    shrink = tiny_cell if tiny else lambda cell: cell
    return [shrink(cell).with_seed(seed) for seed in range(seeds) for cell in cells if cell is not None]


def tiny_table(table: Table) -> Table:
    """The table with tiny cells; nothing was published for those."""
    alone = _shrunk(table.alone) if table.alone else None
    return replace(table, cell=_shrunk(table.cell), alone=alone, published=lambda point: None)


def _shrunk(cell: Callable[[Point], Cell | None]) -> Callable[[Point], Cell | None]:
    def shrunk(point: Point) -> Cell | None:
        found = cell(point)
        return tiny_cell(found) if found is not None else None

    return shrunk


def _tiny_teacher(teacher: TeacherCell) -> TeacherCell:
    return TeacherCell(
        network="wrn-10-1",
        data="digits",
        classes=_scaled(teacher.classes, teacher.data),
        settings=pairs(epochs=2, batch_size=64, val_fraction=0.0, shots=32),
    )


def _scaled(classes: str | None, data: str) -> str | None:
    if classes is None:
        return None
    start, stop = (round(int(end) * 10 / _CLASSES[data]) for end in classes.split(":"))
    return f"{start}:{max(stop, start + 2)}"
