"""``refilled bench``"""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from refilled import suite
from refilled.checks import check_number
from refilled.cli.printing import say
from refilled.errors import UserError
from refilled.files import write_text
from refilled.training import make_reporter

_SELECTION = ("overlap", "student", "method", "shots", "where")
_TRAINING = ("together", "minutes", "keep_students")
_IDLE = {
    "list": (
        *_SELECTION, *_TRAINING, "seeds", "tasks", "data", "work", "tune_epochs", "tiny", "compile", "device",
    ),
    "render": (*_SELECTION, *_TRAINING, "data", "tune_epochs", "compile", "device"),
    "figures": (*_SELECTION, *_TRAINING, "tasks", "tune_epochs"),
    "tune": ("minutes", "keep_students"),
}  # fmt: skip
"""Options that do nothing for each of the things to do beside running."""


@dataclass
class BenchCommand:
    """Run the paper's experiments: cells that the ledger has are not run again, an interrupted grid goes on.

    For instance:

    refilled bench --list

    refilled bench cifar100-gkd --list

    refilled bench cifar100-gkd --overlap 60 --student wrn-16-2 --method refilled student --seeds 3

    refilled bench cifar100-gkd --render

    refilled bench cifar100-gkd --overlap 60 --student wrn-16-2 --method refilled --tune 30 --tune-epochs 60

    refilled bench miniimagenet-fewshot --shots 1 5 10 30 --tasks 10000

    refilled bench --figures overlap weights
    """

    table: Annotated[Positional[str | None], arg(metavar="TABLE")] = None
    """Name of a table; see --list."""
    list: bool = False
    """Show what tables there are; of TABLE its axes, and how many of its cells the ledger has."""
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
    seeds: int | None = None
    """Seeds 0 to this less one, for tables of trainings; none: three. A page shows at least three, where they
    are there."""
    tasks: int | None = None
    """How many tasks, for tables of few-shot tasks; none: 10,000, in a trial of --tune 500. Those that the
    ledger has are not run again."""
    data: Path | None = None
    """Folder that holds the data sets as published, side by side; none: that of REFILLED_DATA."""
    work: Path = suite.WORK
    """Folder for teachers, which are trained once, students of figures, trials of --tune, and trainings that
    were interrupted: they go on."""
    ledger: Path = suite.LEDGER
    """File of finished runs; each is appended as it ends."""
    render: bool = False
    """Only write results/TABLE.md from the ledger."""
    figures: Annotated[tuple[str, ...], arg(metavar="NAME", help_behavior_hint="(none)")] = ()
    """Only draw these figures, or all, into results/figures; they take no TABLE. What a figure that is named
    looks at is trained if it is not there; of all, those are left out that need training."""
    tune: int | None = None
    """Only search the method's settings on validation images or tasks, in this many trials (with those made
    before); what is chosen goes to results/tuned. Each trial trains --seeds students, or those of --tasks."""
    tune_epochs: int | None = None
    """Epochs of a trial; none: those of the table."""
    tiny: bool = False
    """The same shape of experiment in seconds, on digits, with a ledger in --work."""
    together: int | None = None
    """Train this many at the same time; none: on a GPU four trainings or 256 tasks, else one or eight."""
    minutes: float | None = None
    """Begin no cell that would probably end later than this, and say how many are left; none: run all."""
    keep_students: bool = False
    """Keep the students of cells that are run, as run folders in --work: figures look for them there."""
    compile: bool = False
    """Compile networks and losses; pays for long runs on a GPU. Cells with few images are run as they are."""
    device: str = "auto"
    """cpu, cuda or mps; auto: cuda where there is one."""

    def run(self) -> None:
        """List, draw, tune, run or render."""
        self._refuse_contradictions()
        if self.figures:
            self._draw()
            return
        if self.table is None:
            list_tables()
            return
        table = suite.get_table(self.table)
        if self.list:
            list_axes(table, self._ledger())
            return
        where = table.where(
            {"overlap": self.overlap, "student": self.student, "method": self.method, "shots": self.shots},
            self.where,
        )
        judge = table.judge(self.seeds, self.tasks, tiny=self.tiny, trial=self.tune is not None)
        ledger = self._ledger()
        if self.render and not ledger.path.exists():
            other = "run it first" if self.tiny else "give --ledger FILE"
            raise UserError(f"there is no ledger {ledger.path} to render {table.name} from; {other}")
        if self.keep_students and not isinstance(judge, suite.OverSeeds):
            raise UserError(f"--keep-students is for tables of trainings; {table.name} is judged over tasks")
        places = suite.Places(self.data, self.work)
        check_number("--minutes", self.minutes, above=0)
        bench = suite.Bench(
            ledger, places, self.device, say, self.together, make_reporter(True),
            60 * self.minutes if self.minutes is not None else None, self.keep_students, compile=self.compile,
        )  # fmt: skip
        if self.tune is not None:
            folder = ledger.path.parent / "tuned"
            suite.tune_table(table, where, bench, folder, self.tune, judge, self.tune_epochs, tiny=self.tiny)
            return
        if not self.render:
            cells = suite.cells_of(table, where, judge, tiny=self.tiny)
            bench.check([cell for cell in cells if not ledger.has(cell)])
            say(f"{table.name}: {len(cells)} cells, {sum(map(ledger.has, cells))} of them in {ledger.path}")
            bench.run(cells)
        if not self.tiny:
            judge = judge.for_page(filter(None, map(table.cell, table.points())), ledger)
        work = self.work if self.tiny else suite.WORK  # a page is made of the ledger alone
        options = judge.options() + suite.elsewhere(self.ledger, work, self.tiny)
        command = f"refilled bench {table.name} --render{options}"
        if self.tiny:  # nobody else reads it
            table = replace(table, axes=table.chosen(where))
        page = suite.render(table, ledger, judge, command, tiny=self.tiny)
        if self.tiny:
            say(page)
            return
        path = self.ledger.parent / f"{table.name}.md"
        write_text(path, page)
        say(f"{path} is written")

    def _refuse_contradictions(self) -> None:
        """What cannot be asked for together, and what does nothing by itself."""
        ways = {
            "--list": self.list, "--render": self.render, "--tune": self.tune is not None,
            "--figures": bool(self.figures),
        }  # fmt: skip
        asked = [way for way, given in ways.items() if given]
        idle = [option for way in asked for option in self._given(_IDLE[way.removeprefix("--")])]
        if len(asked) > 1:
            raise UserError(f"{' and '.join(asked)} are different things to do: give one of them")
        if self.list and self.table is None:
            idle += self._given(("ledger",))
        if self.figures and self.table is not None:
            raise UserError(f"--figures says what is drawn; leave out the table {self.table!r}")
        if self.table is None and asked in (["--render"], ["--tune"]):
            raise UserError(f"{asked[0]} needs the name of a table: refilled bench --list shows them")
        if self.tune_epochs is not None and self.tune is None:
            raise UserError("--tune-epochs is for --tune: how long a trial is")
        if idle:
            raise UserError(f"{', '.join(idle)} does nothing with {asked[0]}: leave it out")
        if self.tiny and (given := self._given(("ledger",))):
            raise UserError(f"{given[0]} does nothing with --tiny, whose ledger is in --work: leave it out")
        if self.render and not self.tiny and (given := self._given(("work",))):
            raise UserError(f"{given[0]} does nothing with --render, which reads the ledger: leave it out")
        if self.table is None and not asked and (given := self._given((*_IDLE["list"], "ledger"))):
            raise UserError(f"{', '.join(given)} of which table? refilled bench --list shows them")
        check_number("--seeds", self.seeds, least=1)
        check_number("--tune-epochs", self.tune_epochs, least=2)  # two stages need one each

    def _given(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Those of these options that were given, as they are written."""
        usual = {field.name: field.default for field in fields(self)}
        return tuple(f"--{name.replace('_', '-')}" for name in names if getattr(self, name) != usual[name])

    def _ledger(self) -> suite.Ledger:
        ledger = suite.Ledger(self.work / "tiny.jsonl" if self.tiny else self.ledger)
        for note in ledger.notes():
            say(note, style="yellow")
        return ledger

    def _draw(self) -> None:
        ledger, places = self._ledger(), suite.Places(self.data, self.work)
        seeds = self.seeds if self.seeds is not None else suite.SEEDS
        studio = suite.Studio(ledger, places, self.device, seeds, self.tiny, say, compile=self.compile)
        suite.make_figures(self.figures, studio, ledger.path.parent / "figures")


def list_tables() -> None:
    """What tables there are, a line each."""
    width = max(map(len, suite.TABLES))
    for table in suite.TABLES.values():
        say(f"{table.name:{width}}  {table.title}")
    say("refilled bench TABLE --list shows its rows and columns, and how much of it the ledger has")


def list_axes(table: suite.Table, ledger: suite.Ledger) -> None:
    """What a table's cells can be, and how many of them are there."""
    say(f"{table.name}: {table.title}", style="bold")
    for axis, values in table.axes.items():
        say(f"    {axis}: {', '.join(map(suite.shown, values))}")
    judge = table.judge()
    cells = suite.cells_of(table, {}, judge)
    say(f"    {sum(map(ledger.has, cells))} of {len(cells)} cells ({judge}) are in {ledger.path}")
