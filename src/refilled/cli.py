"""The command line: parse, call, print; nothing else."""

import os
import shutil
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tyro.conf import Positional, arg

from refilled import suite
from refilled.errors import UserError
from refilled.files import write_text
from refilled.methods import METHODS, get_method
from refilled.runs import DataSettings, Result, Verdict, compare, distill, evaluate
from refilled.runs.compare import accuracy_text
from refilled.runs.demo import Demo, run_demo
from refilled.runs.settings import parse_assignments
from refilled.training import TrainSettings
from refilled.version import __version__

console = Console(soft_wrap=True)
_METHOD_HELP = "; ".join(f"{name}: {method.summary}" for name, method in METHODS.items())
_DATA_HELP = (
    "digits, a folder of images (DIR/CLASS/*.jpg or DIR/train/CLASS/...), or a folder as published of "
    "CIFAR-100, CUB-200-2011, Stanford Dogs or miniImageNet."
)
_STUDENT_HELP = "wrn-D-W, resnet-N, mobilenet-W, convnet-N, timm:NAME, timm:NAME@FILE.safetensors, hf:FOLDER."
_Data = Annotated[Positional[str], arg(metavar="DATA", help=_DATA_HELP)]
_Student = Annotated[str, arg(help=_STUDENT_HELP)]
_Training = Annotated[TrainSettings, arg(name="")]
_Images = Annotated[DataSettings, arg(name="")]


@dataclass
class DemoCommand:
    """See it work: a teacher of the digits 0-7, a student that must learn 4-9 from a few images.

    Real handwritten digits, about a minute on two cores. Prints a table: student alone, ReFilled-EMB,
    ReFilled, at equal epochs over several seeds, and leaves a run folder that `refilled evaluate` can load.
    """

    out: Path | None = None
    """Folder to write; none: a new one under runs/."""
    seeds: int = 10
    """Seeds; each has other initial weights and other training images."""
    shots: int = 5
    """Training images of each class."""
    device: str = "auto"
    """cpu, cuda or mps; auto: cuda where there is one."""

    def run(self) -> None:
        """Run the demo and print its table."""
        demo = run_demo(
            self.out or fresh_folder("demo"), seeds=self.seeds, shots=self.shots, device=self.device
        )
        print_demo(demo)


@dataclass
class TrainCommand:
    """Train a network alone, for instance a teacher.

    Example: refilled train photos --student wrn-40-2 --out runs/teacher
    """

    data: _Data
    student: _Student = "wrn-16-2"
    out: Path | None = None
    """Run folder to write; none: a new one under runs/."""
    resume: bool = False
    """Go on with the interrupted run in --out."""
    training: _Training = field(default_factory=TrainSettings)
    images: _Images = field(default_factory=DataSettings)

    def run(self) -> None:
        """Train and print the accuracy."""
        self.out = chosen_folder(self.out, self.resume, f"{Path(self.data).name}-{self.student}")
        settings = asdict(self.training) | asdict(self.images)
        result = distill(None, self.student, self.data, "student", self.out, resume=self.resume, **settings)
        print_accuracy((result,), self.out)


@dataclass
class DistillCommand:
    """Distil a teacher into a student, whatever classes each of them knows.

    Example: refilled distill photos --teacher runs/teacher --student wrn-16-2 --compare --seeds 3
    """

    data: _Data
    teacher: str
    """A run folder, timm:NAME, timm:NAME@FILE.safetensors or hf:FOLDER; it may know other classes."""
    student: _Student = "wrn-16-2"
    method: Annotated[str, arg(help=_METHOD_HELP)] = "refilled"
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
    training: _Training = field(default_factory=TrainSettings)
    images: _Images = field(default_factory=DataSettings)

    def run(self) -> None:
        """Distil and print the accuracy, or the verdict."""
        own = parse_assignments(get_method(self.method), self.set)
        self.out = chosen_folder(
            self.out, self.resume, f"{Path(self.data).name}-{self.student}-{self.method}"
        )
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
            say("add --compare to see whether the teacher helped", style="dim")


@dataclass
class EvaluateCommand:
    """Accuracy of a finished run's student on some data; classes are matched by name.

    Example: refilled evaluate runs/mine photos
    """

    run_folder: Annotated[Positional[Path], arg(metavar="RUN")]
    """A finished run folder."""
    data: _Data
    part: str = "test"
    """test, val or train; where a split has to be made it is the run's own."""
    device: str = "auto"
    """cpu, cuda or mps; auto: cuda where there is one."""
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
            shown = ", ".join(found.left_out[:5]) + (", …" if len(found.left_out) > 5 else "")
            say(f"{len(found.left_out)} classes are unknown to the student and left out: {shown}")
        if found.skipped:
            say(f"{found.skipped} images could not be read and are left out")
        top5 = f", top-5 {100 * found.top5:.2f} %" if found.top5 is not None else ""
        say(f"{found.part}: top-1 {100 * found.accuracy:.2f} %{top5} of {found.images} images", style="bold")
        measured = [(name, share) for name, share in found.per_class.items() if share is not None]
        worst = sorted(measured, key=lambda item: item[1])[:5]
        say("hardest classes: " + ", ".join(f"{name} {100 * share:.0f} %" for name, share in worst))


@dataclass
class MethodsCommand:
    """List the methods and their settings, for --method and --set."""

    def run(self) -> None:
        """Print each method with its settings' defaults."""
        for name, method in METHODS.items():
            say(f"{name}: {method.summary}", style="bold")
            hints = get_type_hints(method.settings)
            for setting, value in asdict(method.settings()).items():
                choices = get_args(hints[setting]) if get_origin(hints[setting]) is Literal else ()
                say(f"    {setting}={value}" + (f"  ({', '.join(choices)})" if choices else ""))


@dataclass
class BenchCommand:
    """Run the paper's experiments: cells that the ledger has are not run again, an interrupted grid goes on.

    Examples: refilled bench --list
    refilled bench cifar100-gkd --overlap 60 --student wrn-16-2 --method refilled student --seeds 3
    refilled bench cifar100-gkd --render
    refilled bench cifar100-gkd --overlap 60 --student wrn-16-2 --method refilled --tune 30 --tune-epochs 60
    refilled bench --figures overlap weights
    """

    table: Annotated[Positional[str | None], arg(metavar="TABLE")] = None
    """Name of a table; see --list."""
    list: bool = False
    """Show the tables and their axes."""
    overlap: tuple[int, ...] = ()
    """Only these overlaps, in percent."""
    student: tuple[str, ...] = ()
    """Only these students."""
    method: tuple[str, ...] = ()
    """Only these rows: methods, or baselines such as teacher-1nn."""
    shots: tuple[int, ...] = ()
    """Only these numbers of images per class."""
    where: Annotated[tuple[str, ...], arg(metavar="AXIS=VALUE", help_behavior_hint="(none)")] = ()
    """Only these values of a table's other axes."""
    seeds: int = 3
    """Seeds 0 to this less one."""
    data: Path | None = None
    """Folder that holds the data sets as published, side by side; none: that of REFILLED_DATA."""
    work: Path = suite.WORK
    """Folder for teachers, which are trained once, students of figures, and trials of --tune."""
    ledger: Path = Path("results/ledger.jsonl")
    """File of finished runs; each is appended as it ends."""
    render: bool = False
    """Only write results/TABLE.md from the ledger."""
    figures: Annotated[tuple[str, ...], arg(metavar="NAME", help_behavior_hint="(none)")] = ()
    """Only draw these figures, or all, into results/figures; they take no TABLE."""
    tune: int | None = None
    """Only search the method's settings on validation images, in this many trials (with those made before);
    what is chosen goes to results/tuned. Each trial trains --seeds students."""
    tune_epochs: int | None = None
    """Epochs of a trial; none: those of the table."""
    tiny: bool = False
    """The same shape of experiment in seconds, on digits, with a ledger in --work."""
    together: int | None = None
    """Train this many at the same time; none: on a GPU four, else one."""
    compile: bool = False
    """Compile the losses; pays for long runs on a GPU."""
    device: str = "auto"
    """cpu, cuda or mps; auto: cuda where there is one."""

    def run(self) -> None:
        """List, draw, tune, run or render."""
        if self.figures:
            self._draw()
            return
        if self.list or self.table is None:
            for table in suite.TABLES.values():
                say(f"{table.name}: {table.title}", style="bold")
                for axis, values in table.axes.items():
                    names = ("all" if value is None else str(value) for value in values)
                    say(f"    {axis}: {', '.join(names)}")
            return
        table = suite.get_table(self.table)
        where = table.where(
            {"overlap": self.overlap, "student": self.student, "method": self.method, "shots": self.shots},
            self.where,
        )
        ledger = self._ledger()
        places = suite.Places(self.data, self.work)
        bench = suite.Bench(ledger, places, self.device, say, self.together, compile=self.compile)
        if self.tune is not None:
            folder = ledger.path.parent / "tuned"
            suite.tune_table(
                table, where, bench, folder, self.tune, self.seeds, self.tune_epochs, tiny=self.tiny
            )
            return
        if not self.render:
            cells = suite.cells_of(table, where, self.seeds, tiny=self.tiny)
            say(f"{table.name}: {len(cells)} cells, {sum(map(ledger.has, cells))} of them in {ledger.path}")
            bench.run(cells)
        command = f"refilled bench {table.name} --render"
        page = suite.render(table, ledger, self.seeds, command, tiny=self.tiny)
        if self.tiny:
            say(page)
            return
        path = self.ledger.parent / f"{table.name}.md"
        write_text(path, page)
        say(f"{path} is written")

    def _ledger(self) -> suite.Ledger:
        ledger = suite.Ledger(self.work / "tiny.jsonl" if self.tiny else self.ledger)
        for note in ledger.notes():
            say(note, style="yellow")
        return ledger

    def _draw(self) -> None:
        if self.table is not None:
            raise UserError(f"--figures says what is drawn; leave out the table {self.table!r}")
        ledger, places = self._ledger(), suite.Places(self.data, self.work)
        studio = suite.Studio(ledger, places, self.device, self.seeds, self.tiny, say)
        suite.make_figures(self.figures, studio, ledger.path.parent / "figures")


def say(text: str, style: str = "") -> None:
    """Print a line as it is: brackets in a person's names are no markup."""
    console.print(Text(text, style=style))


def print_accuracy(results: tuple[Result, ...], out: Path) -> None:
    """One line for runs that are compared with nothing."""
    first = results[0]
    time = f"{first.epochs} epochs, {first.seconds:.1f} s"
    say(f"test accuracy {accuracy_text(results)} ({time}), in {out}")


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


def print_demo(demo: Demo) -> None:
    """The demo's table and verdict."""
    print_table(("", "test accuracy", "gain", "training time"), demo.rows())
    say(demo.verdict.sentence(), style="bold")
    program = "refilled" if shutil.which("refilled") else sys.argv[0]
    say(f"Try: {program} evaluate {demo.student} digits")


def print_table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """A plain table, the first column to the left and the others to the right."""
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)


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


_COMMANDS: dict[str, Any] = {
    "demo": DemoCommand,
    "train": TrainCommand,
    "distill": DistillCommand,
    "evaluate": EvaluateCommand,
    "methods": MethodsCommand,
    "bench": BenchCommand,
}


def main() -> None:
    """Entry point of the ``refilled`` command."""
    command: Any = None
    if sys.argv[1:] == ["--version"]:
        print(f"refilled {__version__}")
        return
    try:
        command = tyro.extras.subcommand_cli_from_dict(
            _COMMANDS,
            prog="refilled",
            description="Distil any teacher into any student, whatever classes each of them knows.",
        )
        command.run()
    except UserError as problem:
        print(f"refilled: {problem}", file=sys.stderr)
        sys.exit(2)
    except OSError as problem:
        if isinstance(problem, BrokenPipeError):
            os._exit(0)  # the reader of a pipe went away: nothing to say
        print(f"refilled: {problem}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        again = (
            f"; go on with the same command and --out {command.out} --resume"
            if hasattr(command, "resume")
            else ""
        )
        print(f"\nrefilled: interrupted{again}", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
