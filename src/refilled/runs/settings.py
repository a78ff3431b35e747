"""Settings of a run, sorted into the rooms they belong to."""

import dataclasses
import types
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from refilled.checks import check_choices, check_number
from refilled.data import AUGMENTATIONS
from refilled.errors import UserError, unknown
from refilled.methods import Method
from refilled.methods.idle import idle_settings
from refilled.training import TrainSettings

_HOW = ("device", "checkpoint_seconds", "step", "compile", "pixels", "cache")
"""Settings that may change when a run goes on."""
_OF_UNLABELLED = ("imitation_unlabelled", "head_unlabelled")
"""Weights of terms for images without labels."""


@dataclass(frozen=True)
class ImageSettings:
    """Which images of the data are used, and how."""

    classes: str | None = None
    """Only these classes: a range such as 20:70 of the class order, or names such as cat,dog."""
    class_order: str = "default"
    """Order that a range refers to: default, cifar-fs, or a file with one class per line."""
    shots: int | None = None
    """Only this many training images of each class, chosen by the seed."""
    val_fraction: float = 0.1
    """Share of the training images held out for validation where the data has no such part; 0: none."""
    test_fraction: float | None = None
    """Share of each class's images that are for testing, in place of the official ones, for CUB-200-2011 (0.3
    is what the paper has) and Stanford Dogs; the validation share is then one of all images, too. None: the
    official ones."""
    split_seed: int = 0
    """Decides which images are held out. It is not the seed: test images stay the same for all seeds."""
    image_size: int | None = None
    """Side in pixels; none: as on disk where images are alike, else what the networks want."""
    augment: str = "auto"
    """none, crop, crop-flip, resized-crop-flip; auto: what suits the data."""
    views: int | None = None
    """Each image is only ever seen in this many augmented views, drawn once: the teacher is asked about each
    of them once, which pays where it is slow (8 on a laptop). None: a new view every time."""
    skip_bad_images: bool = False
    """Leave out images that cannot be read, and say how many, instead of stopping."""
    pixels: Literal["auto", "memory", "stream"] = "auto"
    """Where decoded images are kept: in the device's memory, or on disk and read as they are needed; auto:
    on disk where they would fill more than half of the free memory."""
    cache: str | None = None
    """Folder for decoded images, shared by runs, so that no file is decoded twice; none: cache in the run
    folder, and only where images are streamed."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_number("shots", self.shots, least=2)
        check_number("views", self.views, least=1)
        check_number("val_fraction", self.val_fraction, least=0, below=1)
        check_number("test_fraction", self.test_fraction, above=0, below=1)
        check_number("image_size", self.image_size, least=4)
        check_number("split_seed", self.split_seed, least=0, below=2**63)
        if self.augment not in ("auto", *AUGMENTATIONS):
            raise unknown("augmentation", self.augment, ("auto", *AUGMENTATIONS))


@dataclass(frozen=True)
class DataSettings(ImageSettings):
    """The same, and images without labels beside them, for a student that has a teacher to imitate."""

    unlabelled: str | None = None
    """More images, whose labels are not read, for the student to imitate the teacher on: a folder of image
    files, however arranged, or other data, of which the training images are taken. Of any classes."""
    unlabelled_classes: str | None = None
    """Only those classes of them; without --unlabelled, of the data itself."""
    unlabelled_each: int = 4
    """So many of them are seen for each image with a label."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("unlabelled_each", self.unlabelled_each, least=1)
        if self.unlabelled is not None:
            object.__setattr__(self, "unlabelled", str(self.unlabelled))  # a path is fine too
        if self.unlabelled == "":
            raise UserError("unlabelled is empty; give a folder of images, or leave it out")

    @property
    def has_unlabelled(self) -> bool:
        """Whether there are images without labels."""
        return self.unlabelled is not None or self.unlabelled_classes is not None


def sort_settings(method: Method, settings: dict[str, Any]) -> tuple[TrainSettings, DataSettings, Any]:
    """Settings by name into those of training, data and method; unknown and idle ones are refused."""
    kinds = (TrainSettings, DataSettings, method.settings)
    taken: list[dict[str, Any]] = [{}, {}, {}]
    for name, value in settings.items():
        place = next((i for i, kind in enumerate(kinds) if name in field_names(kind)), None)
        if place is None:
            known = [known for kind in reversed(kinds) for known in field_names(kind)]
            raise unknown(f"setting of method {method.name}", name, known)
        taken[place][name] = value
    train, data, own = (kind(**values) for kind, values in zip(kinds, taken))
    _refuse_idle(method.name, dataclasses.asdict(own), taken[2], dataclasses.asdict(method.settings()))
    return train, data, own


def _refuse_idle(method: str, own: dict[str, Any], given: dict[str, Any], usual: dict[str, Any]) -> None:
    """Refuse what was given and would do nothing; a default that is spelt out may stay."""
    for name, switches in idle_settings(own).items():
        if name in given and given[name] != usual[name]:
            off = " and ".join(switches) + (" is 0" if len(switches) == 1 else " are 0")
            raise UserError(
                f"{name}={given[name]} does nothing in {method} while {off}: "
                f"raise {' or '.join(switches)}, or leave {name} out"
            )


def refuse_unlabelled(method: Method, data_settings: DataSettings, own: Any) -> None:
    """Refuse what is set for images without labels where there are none, and what does nothing without them;
    a default spelt out may stay."""
    every = [(data_settings, "unlabelled_each"), *((own, name) for name in _OF_UNLABELLED)]
    for settings, name in every:
        usual = getattr(type(settings)(), name, None)
        if getattr(settings, name, usual) != usual:
            raise UserError(f"{name} does nothing without images that have no labels: --unlabelled")
    given = dataclasses.asdict(own)
    without = given | {name: 0.0 for name in _OF_UNLABELLED if name in given}
    _refuse_idle(method.name, without, given, dataclasses.asdict(method.settings()))


def what_settings(train: TrainSettings, data: DataSettings, own: Any) -> dict[str, dict[str, Any]]:
    """The settings that decide what comes out, as plain data: not those that say where and how fast."""
    groups = {"train": dataclasses.replace(train, lr=train.first_lr), "data": data, "method": own}
    return {
        name: {k: v for k, v in dataclasses.asdict(group).items() if k not in _HOW}
        for name, group in groups.items()
    }


def field_names(kind: type) -> list[str]:
    """Names of a settings dataclass's fields."""
    return [field.name for field in dataclasses.fields(kind)]


def parse_assignments(method: Method, assignments: tuple[str, ...]) -> dict[str, Any]:
    """``("strength=3", "weight=none")``, as typed on the command line, with values of the right type."""
    hints = get_type_hints(method.settings)
    parsed = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise UserError(f"--set takes NAME=VALUE, not {assignment!r}")
        if name not in hints:
            raise unknown(f"setting of method {method.name}", name, hints)
        parsed[name] = _parse(name, text, hints[name])
    return parsed


def _parse(name: str, text: str, hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        if text.lower() == "none":
            return None
        hint = next(part for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is Literal:
        if text not in get_args(hint):
            raise unknown(f"value of {name}", text, get_args(hint))
        return text
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise UserError(f"{name} is true or false, not {text!r}")
        return text.lower() == "true"
    try:
        return hint(text)
    except ValueError:
        raise UserError(f"{name} takes a value of type {hint.__name__}, not {text!r}") from None
