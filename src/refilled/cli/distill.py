"""``refilled distill``"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg

from refilled.cli.options import Data, ImagesAndMore, Student, Training, chosen_folder
from refilled.cli.printing import print_accuracy, print_table, say
from refilled.errors import unknown
from refilled.methods import METHODS, get_method
from refilled.runs import DataSettings, Verdict, compare
from refilled.runs.choice import AUTO, FEW, FEW_IMAGES, MANY
from refilled.runs.settings import parse_assignments
from refilled.training import TrainSettings

_FIRST_TO_KNOW = (MANY, FEW, "refilled-two-stages", "kd", "rkd", "fine-tune", "student")
_METHOD_HELP = "; ".join(
    [f"{AUTO}: {MANY}, or {FEW} where there are fewer than {FEW_IMAGES} training images per class"]
    + [f"{name}: {METHODS[name].summary}" for name in _FIRST_TO_KNOW]
    + [f"{len(METHODS) - len(_FIRST_TO_KNOW)} more: see `refilled methods`"]
)


@dataclass
class DistillCommand:
    """Distil a teacher into a student, whatever classes each of them knows.

    Example: refilled distill photos --teacher runs/teacher --student wrn-16-2 --compare --seeds 3
    """

    data: Data
    teacher: str
    """A run folder, timm:NAME, timm:NAME@FILE.safetensors or hf:FOLDER; it may know other classes."""
    student: Student = "wrn-16-2"
    method: Annotated[str, arg(help=_METHOD_HELP)] = AUTO
    set: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE", help_behavior_hint="(none)")] = ()
    """Settings of the method, e.g. strength=3 weight=none; `refilled methods` lists them."""
    compare: bool = False
    """Also train the student alone for the same epochs, and say whether the teacher helped."""
    seeds: int = 1
    """Repeat with this many seeds."""
    together: int | None = None
    """Train this many seeds at the same time; none: on a GPU up to four, else one."""
    out: Path | None = None
    """Run folder to write; none: a new one under runs/."""
    resume: bool = False
    """Go on with the interrupted run in --out."""
    training: Training = field(default_factory=TrainSettings)
    images: ImagesAndMore = field(default_factory=DataSettings)

    def run(self) -> None:
        """Distil and print the accuracy, or the verdict."""
        if self.method not in (AUTO, *METHODS):
            raise unknown("method", self.method, (AUTO, *METHODS))
        named = MANY if self.method == AUTO else self.method  # either has the same settings
        own = parse_assignments(get_method(named), self.set)
        self.out = chosen_folder(self.out, self.resume, f"{Path(self.data).name}-{self.student}-{named}")
        settings: dict[str, Any] = asdict(self.training) | asdict(self.images) | own
        verdict = compare(
            self.teacher,
            self.student,
            self.data,
            self.method,
            self.out,
            seeds=self.seeds,
            alone=self.compare,
            together=self.together,
            resume=self.resume,
            **settings,
        )
        if self.compare:
            print_verdict(verdict, self.out)
        else:
            print_accuracy(verdict.with_teacher, self.out)
            if get_method(verdict.with_teacher[0].method).needs_teacher:
                say("add --compare to see whether the teacher helped", style="dim")
        if self.training.keep_teacher_classes:
            say(
                f"how well it knows the teacher's classes: refilled evaluate {self.out} THEIR-IMAGES",
                style="dim",
            )


def print_verdict(verdict: Verdict, out: Path) -> None:
    """A table and a sentence."""
    first = verdict.with_teacher[0]
    print_table(("", "test accuracy", "training time", "epochs"), verdict.rows())
    say(
        f"The teacher knows {100 * (first.overlap or 0):.0f} % of the student's classes. The nearest class "
        f"mean in its embedding reaches {100 * (first.teacher_ncm or 0):.1f} % on the test images."
    )
    say(verdict.sentence(), style="bold")
    if verdict.hint():
        say(verdict.hint())
    say(f"student and verdict are in {out}")
