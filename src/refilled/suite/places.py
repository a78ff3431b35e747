"""Where data sets and finished teachers lie on this machine; a cell names them, it does not know."""

import os
from dataclasses import dataclass
from pathlib import Path

from refilled.errors import UserError
from refilled.suite.cell import Cell, TeacherCell

DATA_VARIABLE = "REFILLED_DATA"
WORK = Path("runs/bench")


@dataclass(frozen=True)
class Places:
    """Folders of a benchmark.

    Args:
        data: folder that holds the data sets as published, side by side; None: that of ``REFILLED_DATA``.
        work: folder for teachers, which are trained once, students of figures, and trials of a search.
    """

    data: Path | None
    work: Path

    def data_spec(self, name: str) -> str:
        """What :func:`refilled.data.open_data` takes for a data set of that name."""
        if name == "digits":
            return name
        folder = self.data or (Path(os.environ[DATA_VARIABLE]) if DATA_VARIABLE in os.environ else None)
        if folder is None:
            raise UserError(
                f"where is {name}? Give --data DIR, the folder that holds the data sets, or set "
                f"{DATA_VARIABLE}"
            )
        return f"{name}:{folder}"

    def teacher_folder(self, teacher: TeacherCell) -> Path:
        """Run folder of a teacher."""
        cell = teacher.as_cell()
        classes = (teacher.classes or "all").replace(":", "-")
        return self.work / "teachers" / f"{teacher.data}-{classes}-{teacher.network}-{cell.key}"

    def student_folder(self, cell: Cell) -> Path:
        """Run folder of a student that is trained for a figure."""
        return self.work / "students" / f"{cell.data}-{cell.student}-{cell.method}-{cell.key}"
