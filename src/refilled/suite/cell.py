"""A cell of a table: one training that ends in one number, described completely."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from typing import Any, ClassVar

from refilled.methods import METHODS, get_method
from refilled.runs.settings import sort_settings, what_settings
from refilled.training import FRESH_LR

PROTOCOL = 1
"""Part of every key: to be raised when the same description no longer gives the same number."""
BEFORE: dict[str, Any] = {
    "mixtures": False, "head_same": 0.0, "head_share": 0.0, "head_unlabelled": 0.0, "fade": 0.0,
    "head_fade": None,
}  # fmt: skip
"""What younger settings mean where a description lacks them, whatever their defaults may become."""

_OF_IMAGES = (
    "unlabelled", "unlabelled_classes", "val_fraction", "test_fraction", "split_seed", "augment", "views",
)  # fmt: skip
"""Settings that say which images there are, and how they are shown."""


@dataclass(frozen=True)
class TeacherCell:
    """How a teacher is made: a network trained on some classes, alone unless it has a teacher itself."""

    network: str
    data: str
    classes: str | None = None
    class_order: str = "default"
    settings: tuple[tuple[str, Any], ...] = ()
    """Of training and data."""
    seed: int = 0
    method: str = "student"
    taught_by: "TeacherCell | None" = None

    def with_those_before(self) -> "tuple[TeacherCell, ...]":
        """Who taught it, who taught those, and itself; each after its own teacher."""
        return (*(self.taught_by.with_those_before() if self.taught_by else ()), self)

    def as_cell(self) -> "Cell":
        """The teacher's own training."""
        return Cell(
            data=self.data,
            student=self.network,
            method=self.method,
            teacher=self.taught_by,
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
    on_validation: bool = False
    """Judged on validation images; the test images are not read."""
    kind: ClassVar[str] = "training"

    @cached_property
    def key(self) -> str:
        """The same for the same training, and for no other: 16 hexadecimal digits."""
        return hashed(self.known_by(self.to_json()))

    def to_json(self) -> dict[str, Any]:
        """All that describes the cell; settings in full, so that a default that changes is another cell."""
        described = asdict(self) | {"settings": self.resolved()}
        described["teacher"] = self.teacher.as_cell().to_json() if self.teacher else None
        if not self.on_validation:  # the first cells did not know of it
            del described["on_validation"]
        return json.loads(json.dumps(described))

    @staticmethod
    def known_by(described: dict[str, Any]) -> dict[str, Any]:
        """A description of :meth:`to_json`, now or by an earlier version, without settings that are as usual:
        a setting that is younger than the description is not missed.

        As usual is what ``BEFORE`` says, else the default: whoever adds a setting gives it the default that
        changes nothing, and whoever changes that default writes the old one down there.
        """
        known: dict[str, Any] = json.loads(json.dumps(described))
        if known["method"] in METHODS:
            usual, given = _usual(known["method"]), _as_named_now(known)
            known["method"] = _filed_as(known["method"])
            as_filed = _usual(known["method"])
            known["settings"] = {
                group: unusual(values | given.get(group, {}), as_filed[group])
                for group, values in usual.items()
            }
        if known["teacher"] is not None:
            known["teacher"] = Cell.known_by(known["teacher"])
        return known

    def resolved(self) -> dict[str, Any]:
        """All settings that decide what comes out, those with their default value too."""
        if self.method not in METHODS:  # a baseline on the teacher's embedding, which trains nothing
            return dict(self.settings)
        return what_settings(*sort_settings(get_method(self.method), self.arguments()))

    def arguments(self) -> dict[str, Any]:
        """Settings by name as :func:`refilled.distill` takes them: its own, seed, shots and classes, and the
        learning rate in any case, which else would depend on where the student starts."""
        return (
            {"lr": FRESH_LR}
            | dict(self.settings)
            | {
                "seed": self.seed,
                "shots": self.shots,
                "classes": self.classes,
                "class_order": self.class_order,
            }
        )

    def with_settings(self, **changes: Any) -> "Cell":
        """The same cell with some settings changed."""
        return replace(self, settings=pairs(**(dict(self.settings) | changes)))

    def with_seed(self, seed: int) -> "Cell":
        """The same cell with another seed."""
        return replace(self, seed=seed)

    @property
    def same_classes(self) -> bool:
        """Whether its teacher knows the same classes, as far as their description says; True without one."""
        if self.teacher is None:
            return True
        own, its = ((one.data, one.classes, one.class_order) for one in (self, self.teacher))
        return own == its or (own[0] == its[0] and own[1] is None and its[1] is None)

    @property
    def keeps(self) -> bool:
        """Whether its student also learns its teacher's classes, and is judged on both."""
        return bool(dict(self.settings).get("keep_teacher_classes"))

    @property
    def teachers(self) -> tuple[TeacherCell, ...]:
        """Networks that must have been trained before."""
        return (self.teacher,) if self.teacher else ()

    def merged(self, records: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        """One record out of those with the cell's key: a training is in one piece; the last one counts."""
        return records[-1] if records else None

    def is_whole(self, record: dict[str, Any]) -> bool:
        """Whether that record is all there is to measure."""
        return True

    @property
    def world(self) -> tuple[Any, ...]:
        """Cells of one world share images and teacher: they can be trained side by side cheaply."""
        return (
            self.data,
            self.classes,
            self.class_order,
            self.teacher,
            self.shots and (self.shots, self.seed),
            self.on_validation,
            tuple(dict(self.settings).get(name) for name in _OF_IMAGES),
        )

    def describe(self) -> str:
        """In words, for a line of progress."""
        classes = f" {self.classes}" if self.classes else ""
        shots = f", {self.shots} shots" if self.shots else ""
        taught = f" of {self.teacher.network}" if self.teacher and self.method != "student" else ""
        own = "".join(f", {name} {value}" for name, value in self._changed().items())
        others = dict(self.settings).get("unlabelled_classes")
        own += f", {others} unlabelled" if others else ""
        return f"{self.data}{classes}{shots}: {self.student}, {self.method}{own}{taught}, seed {self.seed}"

    def _changed(self) -> dict[str, Any]:
        """Settings of the method that are not its defaults."""
        if self.method not in METHODS:
            return {}
        defaults = asdict(get_method(self.method).settings())
        return {name: value for name, value in self.settings if value != defaults.get(name, value)}

    def figures(self, record: dict[str, Any]) -> str:
        """What was measured, for a line of progress."""
        judged, where = ("val_accuracy", " on validation") if self.on_validation else ("test_accuracy", "")
        return f"{100 * record[judged]:.2f} %{where}, {record['seconds']:.0f} s"


def _usual(method: str) -> dict[str, dict[str, Any]]:
    """What the settings of a method mean where a description lacks them, by their groups."""
    return {
        group: {name: BEFORE.get(name, value) for name, value in values.items()}
        for group, values in _defaults(method).items()
    }


@cache
def _defaults(method: str) -> dict[str, dict[str, Any]]:
    """As plain data."""
    return json.loads(json.dumps(what_settings(*sort_settings(get_method(method), {}))))


def unusual(settings: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    """Those that are not as usual."""
    return {name: value for name, value in settings.items() if name not in usual or value != usual[name]}


def _as_named_now(described: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings of a description by their names of today, and without what does nothing for its classes.

    ``head_shared`` was, where the teacher knows all of the student's classes, what ``head_same`` is now, and
    another term where it does not: there ``head_same`` and ``head_share`` are none, whatever they say, and
    how they would fade is nothing.
    """
    groups = {group: dict(values) for group, values in described["settings"].items()}
    own = groups.get("method", {})
    if "head_shared" in own and (own["head_shared"] == 0 or _knows_all(described)):
        own["head_same"] = own.pop("head_shared")
    if not _knows_all(described):
        own |= {name: 0.0 for name in ("head_same", "head_share") if name in own}
        if "head_fade" in own and not own.get("head_unlabelled"):
            own["head_fade"] = None
    return groups


def _knows_all(described: dict[str, Any]) -> bool:
    """Whether a teacher knows all classes of its student: it has all of the data's, the same, or a range of
    the same order around them."""
    teacher = described["teacher"]
    if teacher is None or teacher["data"] != described["data"]:
        return False
    if teacher["classes"] is None:
        return True
    if teacher["class_order"] != described["class_order"]:
        return False
    here, there = (class_range(one["classes"]) for one in (teacher, described))
    around = here is not None and there is not None and here[0] <= there[0] and there[1] <= here[1]
    return around or teacher["classes"] == described["classes"]


def class_range(classes: str | None) -> tuple[int, int] | None:
    """``20:70`` as two numbers; None for anything else."""
    start, colon, end = (classes or "").partition(":")
    return (int(start), int(end)) if colon and start.isdigit() and end.isdigit() else None


def _filed_as(method: str) -> str:
    """The first of the methods with the same stages: they differ in the defaults of their settings alone, so
    that with all settings spelt out they are one training."""
    stages = get_method(method).stages
    return next(name for name in METHODS if get_method(name).stages is stages)


def hashed(known_by: dict[str, Any]) -> str:
    """Key of a cell that is known by this."""
    text = json.dumps([PROTOCOL, known_by], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def pairs(**settings: Any) -> tuple[tuple[str, Any], ...]:
    """Settings in the form that a cell holds them, in one order."""
    return tuple(sorted(settings.items()))
