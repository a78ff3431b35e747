"""Options that several commands share, and the folder that a run goes to."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Fixed, Positional, Suppress, arg

from refilled.errors import UserError
from refilled.runs import DataSettings, ImageSettings
from refilled.training import TrainSettings

_DATA_HELP = (
    "digits, a folder of images (DIR/CLASS/*.jpg or DIR/train/CLASS/...), or a folder as published of "
    "CIFAR-100, CUB-200-2011, Stanford Dogs or miniImageNet."
)
_STUDENT_HELP = "wrn-D-W, resnet-N, mobilenet-W, convnet-N, timm:NAME, timm:NAME@FILE.safetensors, hf:FOLDER."
Data = Annotated[Positional[str], arg(metavar="DATA", help=_DATA_HELP)]
Student = Annotated[str, arg(help=_STUDENT_HELP)]
Training = Annotated[TrainSettings, arg(name="")]


@dataclass(frozen=True)
class SettingsAlone(TrainSettings):
    """Those of a training without a teacher, whose classes could be kept."""

    keep_teacher_classes: Suppress[Fixed[bool]] = False
    keep_weight: Suppress[Fixed[float]] = TrainSettings.keep_weight
    keep_tau: Suppress[Fixed[float]] = TrainSettings.keep_tau
    calibrate: Suppress[Fixed[bool]] = TrainSettings.calibrate
    keep_level: Suppress[Fixed[bool | None]] = TrainSettings.keep_level


TrainingAlone = Annotated[SettingsAlone, arg(name="")]
Images = Annotated[ImageSettings, arg(name="")]
ImagesAndMore = Annotated[DataSettings, arg(name="")]


def chosen_folder(out: Path | None, resume: bool, name: str) -> Path:
    """The folder that was asked for, or a new one under runs/."""
    if out is None and resume:
        raise UserError("--resume needs --out: the folder of the run to go on with")
    return out.expanduser() if out is not None else fresh_folder(name)


def fresh_folder(name: str) -> Path:
    """A folder under runs/ that is not there yet."""
    safe = "".join(c if c.isalnum() or c in "-._" else "-" for c in name).strip("-.")
    path, number = Path("runs") / safe, 2
    while path.exists():
        path, number = Path("runs") / f"{safe}-{number}", number + 1
    return path
