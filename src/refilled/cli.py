"""The command line: parse, call, print; nothing else."""

import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, arg, configure

from refilled.errors import UserError
from refilled.methods import METHODS, get_method
from refilled.runs import DataSettings, Verdict, compare, distill, evaluate
from refilled.runs.compare import accuracy_text
from refilled.runs.demo import Demo, run_demo
from refilled.runs.settings import parse_assignments
from refilled.training import TrainSettings

console = Console(soft_wrap=True)
_METHOD_HELP = "; ".join(f"{name}: {method.summary}" for name, method in METHODS.items())
_Flat = arg(name="")


@configure(tyro.conf.AvoidSubcommands)
@dataclass
class DemoCommand:
    """See it work: a teacher of the digits 0-7, a student that must learn 4-9 from a few images.

    Real handwritten digits, about two minutes on two cores. Prints a table: student alone, ReFilled-EMB,
    ReFilled, at equal epochs over several seeds, and leaves a run folder that `refilled evaluate` can load.
    """

    out: Path | None = None
    """Folder to write; none: a new one under runs/."""
    seeds: int = 5
    """Seeds; each has other initial weights and other training images."""
    shots: int = 5
    """Training images of each class."""
    device: str = "auto"

    def run(self) -> None:
        """Run the demo and print its table."""
        out = self.out or fresh_folder("demo")
        demo = run_demo(out, seeds=self.seeds, shots=self.shots, device=self.device)
        print_demo(demo)


@dataclass
class TrainCommand:
    """Train a network alone, for instance a teacher.

    Example: refilled train photos --student wrn-40-2 --out runs/teacher
    """

    data: Annotated[Positional[str], arg(metavar="DATA")]
    """digits, a folder of images (DIR/CLASS/*.jpg or DIR/train/CLASS/...), or CIFAR-100's folder."""
    student: str = "wrn-16-2"
    """wrn-D-W, resnet-N, mobilenet-W, convnet-N, timm:NAME, timm:NAME@FILE.safetensors, hf:FOLDER."""
    out: Path | None = None
    """Run folder to write; none: a new one under runs/."""
    resume: bool = False
    """Go on with the interrupted run in --out."""
    training: Annotated[TrainSettings, _Flat] = field(default_factory=TrainSettings)
    images: Annotated[DataSettings, _Flat] = field(default_factory=DataSettings)

    def run(self) -> None:
        """Train and print the accuracy."""
        out = self.out or fresh_folder(f"{Path(self.data).name}-{self.student}")
        settings = asdict(self.training) | asdict(self.images)
        result = distill(None, self.student, self.data, "student", out, resume=self.resume, **settings)
        console.print(
            f"test accuracy [bold]{accuracy_text([result])}[/] after {result.epochs} epochs "
            f"({result.seconds:.1f} s), in {out}",
            highlight=False,
        )


@dataclass
class DistillCommand:
    """Distil a teacher into a student, whatever classes each of them knows.

    Example: refilled distill photos --teacher runs/teacher --student wrn-16-2 --compare --seeds 3
    """

    data: Annotated[Positional[str], arg(metavar="DATA")]
    """digits, a folder of images (DIR/CLASS/*.jpg or DIR/train/CLASS/...), or CIFAR-100's folder."""
    teacher: str
    """A run folder, timm:NAME, timm:NAME@FILE.safetensors or hf:FOLDER; it may know other classes."""
    student: str = "wrn-16-2"
    """wrn-D-W, resnet-N, mobilenet-W, convnet-N, timm:NAME, timm:NAME@FILE.safetensors, hf:FOLDER."""
    method: Annotated[str, arg(help=_METHOD_HELP)] = "refilled"
    set: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE", help_behavior_hint="(none)")] = ()
    """Settings of the method, e.g. strength=3 weight=none; `refilled methods` lists them."""
    compare: bool = False
    """Also train the student alone for the same epochs, and say whether the teacher helped."""
    seeds: int = 1
    """Repeat with this many seeds."""
    out: Path | None = None
    """Run folder to write; none: a new one under runs/."""
    resume: bool = False
    """Go on with the interrupted run in --out."""
    training: Annotated[TrainSettings, _Flat] = field(default_factory=TrainSettings)
    images: Annotated[DataSettings, _Flat] = field(default_factory=DataSettings)

    def run(self) -> None:
        """Distil and print the accuracy, or the verdict."""
        out = self.out or fresh_folder(f"{Path(self.data).name}-{self.student}-{self.method}")
        own = parse_assignments(get_method(self.method), self.set)
        settings: dict[str, Any] = asdict(self.training) | asdict(self.images) | own
        verdict = compare(
            self.teacher,
            self.student,
            self.data,
            self.method,
            out,
            seeds=self.seeds,
            alone=self.compare,
            resume=self.resume,
            **settings,
        )
        print_verdict(verdict, out)


@dataclass
class EvaluateCommand:
    """Accuracy of a finished run's student on some data; classes are matched by name.

    Example: refilled evaluate runs/mine photos
    """

    run_folder: Annotated[Positional[Path], arg(metavar="RUN")]
    """A finished run folder."""
    data: Annotated[Positional[str], arg(metavar="DATA")]
    """digits, a folder of images, or CIFAR-100's folder."""
    part: str = "test"
    """test, val or train; where a split has to be made it is the run's own."""
    device: str = "auto"
    skip_bad_images: bool = False
    """Leave out images that cannot be read, and say how many."""

    def run(self) -> None:
        """Evaluate and print."""
        found = evaluate(
            self.run_folder,
            self.data,
            part=self.part,
            device=self.device,
            skip_bad_images=self.skip_bad_images,
        )
        if found.left_out:
            console.print(
                f"{len(found.left_out)} classes of {self.data} are unknown to this student and left out: "
                f"{', '.join(found.left_out[:5])}{', …' if len(found.left_out) > 5 else ''}"
            )
        if found.skipped:
            console.print(f"{found.skipped} images could not be read and are left out")
        top5 = f", top-5 {100 * found.top5:.2f} %" if found.top5 is not None else ""
        console.print(
            f"{found.part}: top-1 [bold]{100 * found.accuracy:.2f} %[/]{top5} of {found.images} images",
            highlight=False,
        )
        worst = sorted(found.per_class.items(), key=lambda item: item[1])[:5]
        console.print(
            "hardest classes: " + ", ".join(f"{name} {100 * share:.0f} %" for name, share in worst),
            highlight=False,
        )


@dataclass
class MethodsCommand:
    """List the methods and their settings."""

    def run(self) -> None:
        """Print each method with its settings' defaults."""
        for name, method in METHODS.items():
            console.print(f"[bold]{name}[/]: {method.summary}", highlight=False)
            for setting, value in asdict(method.settings()).items():
                console.print(f"    {setting}={value}", highlight=False)


def print_verdict(verdict: Verdict, out: Path) -> None:
    """A table and a sentence, or one line where nothing was compared."""
    first = verdict.with_teacher[0]
    if not verdict.alone:
        console.print(
            f"test accuracy [bold]{accuracy_text(verdict.with_teacher)}[/] after {first.epochs} epochs "
            f"({first.seconds:.1f} s), in {out}",
            highlight=False,
        )
        console.print("add --compare to see whether the teacher helped", style="dim")
        return
    print_table(("", "test accuracy", "training time", "epochs"), verdict.rows())
    console.print(
        f"The teacher knows {100 * (first.overlap or 0):.0f} % of the student's classes; the nearest class "
        f"mean in its embedding reaches {100 * (first.teacher_ncm or 0):.2f} % on them.",
        highlight=False,
    )
    console.print(f"[bold]{verdict.sentence()}[/]", highlight=False)
    console.print(f"student and verdict are in {out}", highlight=False)


def print_demo(demo: Demo) -> None:
    """The demo's table and verdict."""
    print_table(("", "test accuracy", "gain", "training time"), demo.rows())
    console.print(f"[bold]{demo.verdict.sentence()}[/]", highlight=False)
    console.print(f"Try: refilled evaluate {demo.student} digits", highlight=False)


def print_table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """A plain table, the first column to the left and the others to the right."""
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def fresh_folder(name: str) -> Path:
    """A folder under runs/ that is not there yet."""
    safe = "".join(c if c.isalnum() or c in "-._" else "-" for c in name).strip("-.")
    path, number = Path("runs") / safe, 2
    while path.exists():
        path, number = Path("runs") / f"{safe}-{number}", number + 1
    return path


_COMMANDS: dict[str, Any] = {
    "demo": DemoCommand,
    "train": TrainCommand,
    "distill": DistillCommand,
    "evaluate": EvaluateCommand,
    "methods": MethodsCommand,
}


def main() -> None:
    """Entry point of the ``refilled`` command."""
    command = tyro.extras.subcommand_cli_from_dict(
        _COMMANDS,
        prog="refilled",
        description="Distil any teacher into any student, whatever classes each of them knows.",
    )
    try:
        command.run()
    except UserError as problem:
        print(f"refilled: {problem}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        again = "" if "--resume" in sys.argv else " --resume"
        print(f"\nrefilled: interrupted; go on with the same command and --out{again}", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        os._exit(0)  # the reader of a pipe went away: nothing to say


if __name__ == "__main__":
    main()
