"""Where data sets and finished teachers lie on this machine; a cell names them, it does not know."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from refilled.errors import UserError
from refilled.lock import locked, locked_if_free
from refilled.suite.cell import Cell, TeacherCell, hashed

DATA_VARIABLE = "REFILLED_DATA"
WORK, LEDGER = Path("runs/bench"), Path("results/ledger.jsonl")
"""Where everything is unless a command says otherwise."""
DESCRIPTION = "cell.json"
"""What a teacher is, in its run folder."""


@dataclass(frozen=True)
class Places:
    """Folders of a benchmark.

    Args:
        data: folder that holds the data sets as published, side by side; None: that of ``REFILLED_DATA``.
        work: folder for teachers, which are trained once, students of figures, trials of a search, and cells
            that have begun.
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
        if not folder.is_dir():
            raise UserError(
                f"no such folder: {folder}; --data or {DATA_VARIABLE} names the one that holds the data sets"
            )
        return f"{name}:{folder.resolve()}"  # as runs write it down: the same from everywhere

    def check_work(self) -> None:
        """Refuse a folder for work that nothing can be written to, before anything is trained."""
        try:
            self.work.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = "not a directory" if self.work.exists() else str(error.strerror).lower()
            raise UserError(f"cannot write to {self.work}: {reason}; choose another --work") from error

    def teacher_folder(self, teacher: TeacherCell) -> Path:
        """Run folder of a teacher; one that has another key, because there were fewer settings when it was
        trained, is found by its description."""
        key, classes = teacher.as_cell().key, (teacher.classes or "all").replace(":", "-")
        name = f"{teacher.data}-{classes}-{teacher.network}"
        folder = self.work.resolve() / "teachers" / f"{name}-{key}"
        others = [] if folder.exists() else sorted(folder.parent.glob(f"{name}-*/{DESCRIPTION}"))
        found = (other.parent for other in others if _key_of(other) == key)
        return next(found, folder)

    def student_folder(self, cell: Cell) -> Path:
        """Run folder of a student that is trained for a figure."""
        return self.work / "students" / f"{cell.data}-{cell.student}-{cell.method}-{cell.key}"

    @contextmanager
    def student_to_train(self, cell: Cell, waiting: Callable[[], None]) -> Iterator[None]:
        """Begins when no other process trains that student; until then ``waiting`` is called."""
        with locked(self._lock(f"student-{cell.key}"), waiting, "--work"):
            yield

    @contextmanager
    def begun_folder(self, cell: Cell) -> Iterator[Path | None]:
        """Where a cell in training has its checkpoint; None while another process has it in training."""
        folder = self._begun(cell)
        with self._to_train(cell) as ours:
            if ours:
                folder.mkdir(parents=True, exist_ok=True)
            yield folder if ours else None

    @contextmanager
    def teacher_to_train(self, teacher: TeacherCell) -> Iterator[bool]:
        """Whether a teacher is ours to train, within the ``with``; else another process trains it, as a
        teacher or as a cell."""
        with self._to_train(teacher.as_cell()) as ours:
            yield ours

    @contextmanager
    def _to_train(self, cell: Cell) -> Iterator[bool]:
        """Whether a training is ours. Its lock lies apart from its folder, which may be deleted."""
        with locked_if_free(self._lock(cell.key), "--work") as ours:
            yield ours

    def _lock(self, name: str) -> Path:
        locks = self.work / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        return locks / name

    def forget(self, cell: Cell) -> None:
        """Delete the checkpoint of a cell that is done, unless another process has it in training."""
        if not self._begun(cell).exists():
            return
        with self._to_train(cell) as ours:
            if ours:
                shutil.rmtree(self._begun(cell), ignore_errors=True)

    def has_begun(self) -> bool:
        """Whether there is a checkpoint of any cell."""
        return any((self.work / "begun").glob("*"))

    def _begun(self, cell: Cell) -> Path:
        return self.work / "begun" / f"{cell.data}-{cell.student}-{cell.method}-{cell.key}"


def elsewhere(ledger: Path, work: Path, tiny: bool) -> str:
    """What a command says of files that are not where they usually are; of tiny cells the ledger is among
    the work."""
    said = "" if tiny or ledger == LEDGER else f" --ledger {ledger}"
    return said + (f" --work {work}" if work != WORK else "") + (" --tiny" if tiny else "")


def _key_of(description: Path) -> str | None:
    """The key that the described cell has today; None where nothing can be read."""
    try:
        return hashed(Cell.known_by(json.loads(description.read_text())))
    except (OSError, ValueError, KeyError):
        return None
