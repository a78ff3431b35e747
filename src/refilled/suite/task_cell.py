"""A cell that is many tasks: a few-shot method, judged on the first so many tasks of a seed.

Tasks are numbered, and each is a function of its number, so that a cell can be measured in parts. A part is a
record of its own in the ledger, all with the cell's key, in which the number of tasks plays no part:

- an interrupted cell goes on after its last part;
- more tasks than were measured before are only the missing ones;
- fewer are the first of them, and nothing is run.

The record of a part has ``first`` (the number of its first task), ``tasks`` (how many) and ``right``: the
right answers of each task as whole numbers, "57 61 49", out of ways * queries. Three letters for a task, and
two methods can be compared task by task.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from refilled.checks import check_number
from refilled.evaluation import half_interval
from refilled.fewshot import plain_settings, settings_of
from refilled.suite.cell import Cell, TeacherCell, hashed, pairs, unusual
from refilled.suite.wording import listed

TASKS = 10_000
"""As in the paper."""


@dataclass(frozen=True)
class TaskCell:
    """A few-shot method on tasks of some classes: networks, settings, shape and seed of the tasks."""

    data: str
    """Name of a data set, as in :class:`Cell`."""
    classes: str
    """That tasks are drawn from: a range of the class order, with all their images."""
    network: TeacherCell
    """Trained on the seen classes: the baselines' embedding; students start from it."""
    method: str
    """One of :data:`refilled.fewshot.METHODS`."""
    shots: int
    teacher: TeacherCell | None = None
    """Whom the method asks, trained on the seen classes too; None: it asks nobody."""
    ways: int = 5
    queries: int = 15
    """Of each class."""
    settings: tuple[tuple[str, Any], ...] = ()
    """Of the method, each by its name."""
    augment: str = "crop-flip"
    views: int = 10
    """Fixed views of an image beside itself, for methods that train students."""
    seed: int = 0
    """Of tasks and views, and of what is trained on the seen classes."""
    tasks: int = TASKS
    """How many are wanted; not part of the key."""
    val_classes: str = ""
    """What its settings are chosen on; not part of the key."""
    kind: ClassVar[str] = "tasks"

    def __post_init__(self) -> None:
        check_number("tasks", self.tasks, least=1)

    @property
    def key(self) -> str:
        """The same for the same method on the same tasks, however many of them: 16 hexadecimal digits."""
        return hashed(self.known_by(self.to_json()))

    def to_json(self) -> dict[str, Any]:
        """All that describes the cell; settings in full, so that a default that changes is another cell."""
        described = asdict(self) | {"kind": self.kind, "settings": self.resolved()}
        del described["tasks"], described["val_classes"]
        described["network"] = self.network.as_cell().to_json()
        described["teacher"] = self.teacher.as_cell().to_json() if self.teacher else None
        return json.loads(json.dumps(described))

    @staticmethod
    def known_by(described: dict[str, Any]) -> dict[str, Any]:
        """As :meth:`Cell.known_by`, for settings of tasks: one that is younger than the description has its
        default."""
        full = json.loads(json.dumps(described))
        usual = json.loads(json.dumps(plain_settings(settings_of(described["method"]))))
        full["settings"] = unusual(full["settings"], usual)
        full["network"] = Cell.known_by(described["network"])
        if described["teacher"] is not None:
            full["teacher"] = Cell.known_by(described["teacher"])
        return full

    def resolved(self) -> dict[str, Any]:
        """All settings of the method, those with their default value too."""
        return plain_settings(settings_of(self.method, **dict(self.settings)))

    def with_settings(self, **changes: Any) -> "TaskCell":
        """The same cell with some settings changed."""
        return replace(self, settings=pairs(**(dict(self.settings) | changes)))

    def with_seed(self, seed: int) -> "TaskCell":
        """The same cell with other tasks."""
        return replace(self, seed=seed)

    def with_tasks(self, tasks: int) -> "TaskCell":
        """The same cell with more or fewer tasks."""
        return replace(self, tasks=tasks)

    def on_validation(self) -> "TaskCell":
        """The same method on tasks of the classes that settings are chosen on."""
        return replace(self, classes=self.val_classes)

    @property
    def teachers(self) -> tuple[TeacherCell, ...]:
        """Networks that must have been trained before."""
        return (self.network, self.teacher) if self.teacher else (self.network,)

    @property
    def world(self) -> tuple[Any, ...]:
        """Cells of one world share images, networks and what the teacher says of every view."""
        return (self.data, self.classes, self.network, self.teacher, self.augment, self.views, self.seed)

    def part(self, first: int, right: Sequence[int], seconds: float, rate: float) -> dict[str, Any]:
        """Record of some tasks in a row.

        Args:
            first: number of the first.
            right: how many of its ways * queries answers were right, task by task.
            seconds: that they took, with all that had to be made ready.
            rate: tasks per second.
        """
        return {
            **self._accuracy(right),
            "first": first,
            "tasks": len(right),
            "right": " ".join(map(str, right)),
            "seconds": round(seconds, 2),
            "tasks_per_second": round(rate, 2),
        }

    def merged(self, records: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        """One record of the cell's tasks without a gap, as many as there are; None: not even the first.

        Returns:
            What a part has, of the first tasks; ``right`` is a list of whole numbers.
        """
        right: list[int] = []
        used = []
        for record in sorted(records, key=lambda record: record["first"]):
            known, first = len(right), record["first"]
            if first <= known < min(first + record["tasks"], self.tasks):
                right += map(int, record["right"].split()[known - first :])  # two processes may overlap
                used.append(record)
        if not used:
            return None
        seconds = sum(record["seconds"] for record in used)
        computing = sum(record["tasks"] / record["tasks_per_second"] for record in used)
        rate = sum(record["tasks"] for record in used) / computing
        right = right[: self.tasks]
        where = {
            name: listed(record[name] for record in used) for name in ("device", "commit") if name in used[0]
        }
        return used[-1] | self.part(0, right, seconds, rate) | {"right": right} | where

    def is_whole(self, record: dict[str, Any]) -> bool:
        """Whether all tasks are there that are wanted."""
        return record["tasks"] >= self.tasks

    def _accuracy(self, right: Sequence[int]) -> dict[str, float | None]:
        shares = [count / (self.ways * self.queries) for count in right]
        interval = half_interval(shares) if len(shares) > 1 else None
        return {"test_accuracy": sum(shares) / len(shares), "half_interval": interval}

    def describe(self) -> str:
        """In words, for a line of progress."""
        asked = f" of {self.teacher.network}" if self.teacher else ""
        taught = f" ({self.network.method})" if self.network.taught_by else ""
        shape = f"{self.ways}-way {self.shots}-shot"
        return f"{self.data} {self.classes}, {shape}: {self.network.network}{taught}, {self.method}{asked}"

    def figures(self, record: dict[str, Any]) -> str:
        """What was measured, for a line of progress."""
        interval = record["half_interval"]
        doubt = f" ± {100 * interval:.2f}" if interval is not None else ""
        speed = f"{record['tasks_per_second']:,.1f} a second, {record['seconds']:.0f} s"
        return f"{100 * record['test_accuracy']:.2f}{doubt} %, {record['tasks']:,} tasks, {speed}"
