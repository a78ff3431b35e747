"""A cell of a table: one training that ends in one number, described completely."""

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from refilled.methods import METHODS, get_method
from refilled.runs.settings import sort_settings, what_settings

PROTOCOL = 1
"""Part of every key: to be raised when the same description no longer gives the same number."""


@dataclass(frozen=True)
class TeacherCell:
    """How a teacher is made: a network trained alone on some classes."""

    network: str
    data: str
    classes: str | None = None
    class_order: str = "default"
    settings: tuple[tuple[str, Any], ...] = ()
    """Of training and data."""
    seed: int = 0

    def as_cell(self) -> "Cell":
        """The teacher's own training."""
        return Cell(
            data=self.data,
            student=self.network,
            method="student",
            classes=self.classes,
            class_order=self.class_order,
            settings=self.settings,
            seed=self.seed,
        )


@dataclass(frozen=True)
class Cell:
    """A student's training: data, classes, networks, method, settings and seed."""

    data: str
    """Name of a data set: cifar100, cub, dogs, miniimagenet or digits."""
    student: str
    method: str
    teacher: TeacherCell | None = None
    classes: str | None = None
    """A range of the class order, such as 20:70; None: all."""
    class_order: str = "default"
    shots: int | None = None
    settings: tuple[tuple[str, Any], ...] = field(default=())
    """Of training, data and method, each by its name."""
    seed: int = 0

    @property
    def key(self) -> str:
        """The same for the same training, and for no other: 16 hexadecimal digits."""
        return key_of(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """All that describes the cell; settings in full, so that a default that changes is another cell."""
        described = asdict(self) | {"settings": self.resolved()}
        described["teacher"] = self.teacher.as_cell().to_json() if self.teacher else None
        return json.loads(json.dumps(described))

    def resolved(self) -> dict[str, Any]:
        """All settings that decide what comes out, those with their default value too."""
        if self.method not in METHODS:  # a baseline on the teacher's embedding, which trains nothing
            return dict(self.settings)
        return what_settings(*sort_settings(get_method(self.method), self.arguments()))

    def arguments(self) -> dict[str, Any]:
        """Settings by name as :func:`refilled.distill` takes them: its own, seed, shots and classes."""
        return dict(self.settings) | {
            "seed": self.seed,
            "shots": self.shots,
            "classes": self.classes,
            "class_order": self.class_order,
        }

    def with_settings(self, **changes: Any) -> "Cell":
        """The same cell with some settings changed."""
        return replace(self, settings=pairs(**(dict(self.settings) | changes)))

    def with_seed(self, seed: int) -> "Cell":
        """The same cell with another seed."""
        return replace(self, seed=seed)

    @property
    def world(self) -> tuple[Any, ...]:
        """Cells of one world share images and teacher: they can be trained side by side cheaply."""
        return (
            self.data,
            self.classes,
            self.class_order,
            self.teacher,
            self.shots and (self.shots, self.seed),
        )

    def describe(self) -> str:
        """In words, for a line of progress."""
        classes = f" {self.classes}" if self.classes else ""
        shots = f", {self.shots} shots" if self.shots else ""
        taught = f" of {self.teacher.network}" if self.teacher and self.method != "student" else ""
        return f"{self.data}{classes}{shots}: {self.student}, {self.method}{taught}, seed {self.seed}"


def key_of(described: dict[str, Any]) -> str:
    """Key of a cell that was described by :meth:`Cell.to_json`, now or by an earlier version.

    A setting that the description lacks is younger than it, and counts with its default: whoever adds a
    setting gives it the default that changes nothing, or raises ``PROTOCOL``.
    """
    text = json.dumps([PROTOCOL, _completed(described)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _completed(described: dict[str, Any]) -> dict[str, Any]:
    full = dict(described)
    if described["method"] in METHODS:
        defaults = what_settings(*sort_settings(get_method(described["method"]), {}))
        given = described["settings"]
        full["settings"] = {group: values | given.get(group, {}) for group, values in defaults.items()}
    if described["teacher"] is not None:
        full["teacher"] = _completed(described["teacher"])
    return json.loads(json.dumps(full))


def pairs(**settings: Any) -> tuple[tuple[str, Any], ...]:
    """Settings in the form that a cell holds them, in one order."""
    return tuple(sorted(settings.items()))
