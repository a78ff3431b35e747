"""Teachers that cells need and that are not there yet: each is trained once, and kept in a run folder."""

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import cache
from typing import Any

from refilled.files import write_json
from refilled.runs.run import Run
from refilled.runs.shared import Shared
from refilled.suite.cell import TeacherCell
from refilled.suite.kinds import AnyCell
from refilled.suite.ledger import Ledger
from refilled.suite.places import DESCRIPTION
from refilled.suite.runner import Desk
from refilled.suite.trainings import NOT_COMPILED, measured_of
from refilled.training import LossIsNotFinite, Reporter
from refilled.training.turns import WAITING

_SECONDS_BETWEEN_LOOKS = 0.5


class TeacherRuns:
    """Trains teachers, beside whatever else takes turns with them.

    Args:
        ledger: their own numbers go there too.
        desk: data, folders and device.
        say: told when one begins and ends.
    """

    def __init__(self, ledger: Ledger, desk: Desk, say: Callable[[str], None]):
        self.ledger, self.desk, self.say = ledger, desk, say
        self.problems: dict[str, str] = {}
        """By key: why a teacher will not be there."""
        self._awaited: set[str] = set()
        self._left: set[str] = set()

    def expect(self, cells: Iterable[AnyCell]) -> list[TeacherCell]:
        """Those that these cells need and that are not there, each once and after whoever teaches it. From
        now on they, and no others, are awaited: each is to be given to :meth:`job`."""
        wanted = {
            _key(one): one
            for cell in cells
            for teacher in cell.teachers
            for one in teacher.with_those_before()
        }
        missing = {key: teacher for key, teacher in wanted.items() if not self._is_there(teacher)}
        self._awaited, self._left = set(missing), set()
        return list(missing.values())

    def leave(self, teachers: Iterable[TeacherCell]) -> None:
        """They will not be trained now."""
        self._left |= set(map(_key, teachers))

    def are_left(self, keys: frozenset[str]) -> bool:
        """Whether one of those of :func:`before` will not be trained now."""
        return not self._left.isdisjoint(keys)

    def are_there(self, keys: frozenset[str]) -> bool:
        """Whether none of those of :func:`before` is still awaited; asked in every turn while cells wait."""
        return self._awaited.isdisjoint(keys)

    def problem_of(self, teachers: Sequence[TeacherCell]) -> str | None:
        """Why one of them is not there though it is no longer awaited."""
        return next((self.problems[_key(one)] for one in teachers if _key(one) in self.problems), None)

    def job(self, teacher: TeacherCell) -> Generator[Any, None, None]:
        """Train a teacher, or go on with one that was interrupted; whoever teaches it comes first. One that
        breaks down is a problem of those that need it, and of nobody else."""
        cell = teacher.as_cell()
        try:
            while not self._awaited.isdisjoint(map(_key, cell.teachers)):
                yield WAITING
            if (problem := self.problem_of(cell.teachers)) is not None:
                raise LossIsNotFinite(problem)
            yield from self._train_or_wait(teacher)
        except LossIsNotFinite as problem:
            self.problems[_key(teacher)] = str(problem)
            self.say(f"teacher: not finished, {problem}")
        finally:
            self._awaited.discard(_key(teacher))

    def _train_or_wait(self, teacher: TeacherCell) -> Generator[Any, None, None]:
        """Train it, unless another process does; if that one does not finish, it is ours to go on with."""
        cell, told = teacher.as_cell(), False
        while True:
            with self.desk.places.teacher_to_train(teacher) as ours:
                self.ledger.refresh()
                if self._is_there(teacher):
                    return
                if ours:
                    self.say(f"teacher: {cell.describe()}")
                    yield from self._train(teacher)
                    return
            if not told:
                self.say(f"teacher: {cell.describe()}: another process trains it, and is waited for")
                told = True
            looked = time.monotonic()
            while time.monotonic() < looked + _SECONDS_BETWEEN_LOOKS:
                if not self.desk.shares.active:  # nothing else to do
                    time.sleep(_SECONDS_BETWEEN_LOOKS)
                yield WAITING

    def _train(self, teacher: TeacherCell) -> Generator[Any, None, None]:
        cell, places = teacher.as_cell(), self.desk.places
        folder = places.teacher_folder(teacher)
        run = Run(
            places.teacher_folder(cell.teacher) if cell.teacher is not None else None,
            cell.student, places.data_spec(cell.data), cell.method, folder,
            resume=folder.exists(), reporter=Reporter(), shared=Shared(), device=str(self.desk.device),
            **(cell.arguments() | self.desk.settings | NOT_COMPILED),
        )  # fmt: skip
        result = run.finished or run.finish((yield from self.desk.shares.own_part(run.training)))
        write_json(folder / DESCRIPTION, cell.to_json())
        # One that was trained before, elsewhere, was another network: from now on this one's number counts.
        if run.finished is None or not self.ledger.has(cell):
            self.ledger.append(cell, measured_of(result), self.desk.device)
        self.say(f"teacher: {100 * result.accuracy:.2f} %, {result.seconds:.0f} s")

    def _is_there(self, teacher: TeacherCell) -> bool:
        """Whether it is trained, and its number in the ledger."""
        folder = self.desk.places.teacher_folder(teacher)
        return (folder / "result.json").exists() and self.ledger.has(teacher.as_cell())


def before(cell: AnyCell) -> frozenset[str]:
    """Keys of what must not be in training when a cell begins: its teachers, and itself, as a cell may be a
    teacher too."""
    return frozenset({cell.key, *map(_key, cell.teachers)})


@cache
def _key(teacher: TeacherCell) -> str:
    """The same for the same training, however it is described."""
    return teacher.as_cell().key
