"""What a person sees while training runs: a bar in a terminal, a line now and then in a log."""

import sys
import time
from typing import Any, TextIO

from refilled.methods import Stage


class Reporter:
    """Shows nothing; the base of those that do."""

    def start(self, index: int, stages: int, stage: Stage, done: int, steps: int) -> None:
        """A stage begins (or goes on) with ``done`` epochs behind it; an epoch has ``steps`` steps."""

    def step(self, number: int, loss: float, lr: float) -> None:
        """Some steps of an epoch are done."""

    def epoch(self, record: dict[str, Any]) -> None:
        """An epoch is done; ``record`` is its line of metrics."""

    def finish(self) -> None:
        """The stage is done."""

    def line(self, text: str) -> None:
        """Say something between two stages."""

    def loading(self, done: int, total: int, what: str = "reading images") -> None:
        """Something long is done before training: images are decoded, say."""

    def asking(self, done: int, total: int) -> None:
        """The teacher is asked about every view of every image."""
        self.loading(done, total, "asking the teacher about every view")


def describe(record: dict[str, Any]) -> str:
    """The numbers of an epoch in one short line."""
    scores = [f"val {key[4:]} {100 * value:.2f} %" for key, value in record.items() if key.startswith("val/")]
    losses = [f"{key[5:]} {value:.4f}" for key, value in record.items() if key.startswith("loss/")]
    speed = f"{record['images_per_second']:,.0f} images/s"
    return "  ".join([*scores, *losses, speed, f"lr {record['lr']:.4f}"])


class Lines(Reporter):
    """A line at the start and end of a stage, and every few seconds between.

    Args:
        every: least seconds between two lines.
        stream: where to; standard error by default.
    """

    def __init__(self, every: float = 10.0, stream: TextIO | None = None):
        self.every, self.stream, self.shown = every, stream or sys.stderr, time.monotonic()

    def line(self, text: str) -> None:
        """Write one line at once."""
        print(text, file=self.stream, flush=True)

    def loading(self, done: int, total: int, what: str = "reading images") -> None:
        """Say how far it is, now and then."""
        now = time.monotonic()
        if now - self.shown >= self.every:
            self.shown = now
            self.line(f"{what}: {done}/{total}")

    def start(self, index: int, stages: int, stage: Stage, done: int, steps: int) -> None:
        """Remember the stage, to say how far it is."""
        self.stage, self.done, self.label = stage, done, f"stage {index + 1}/{stages} {stage.name}"
        self.began = self.shown = time.monotonic()

    def epoch(self, record: dict[str, Any]) -> None:
        """Write the epoch's numbers where it is time, or the stage ends."""
        now = time.monotonic()
        if now - self.shown < self.every and record["epoch"] < self.stage.epochs:
            return
        self.shown = now
        left = (now - self.began) / (record["epoch"] - self.done) * (self.stage.epochs - record["epoch"])
        self.line(
            f"{self.label}: epoch {record['epoch']}/{self.stage.epochs}  {describe(record)}  "
            f"{left:.0f} s left"
        )


class Bar(Reporter):
    """A progress bar with losses, learning rate, speed and time left (needs rich and a terminal)."""

    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console(stderr=True)
        self.reading: Any = None

    def line(self, text: str) -> None:
        """Print above the bar."""
        self.console.print(text, markup=False, highlight=False)

    def loading(self, done: int, total: int, what: str = "reading images") -> None:
        """A bar of its own."""
        from rich.progress import Progress

        if self.reading is None:
            self.reading = Progress(console=self.console, transient=True)
            self.reading.add_task(what, total=total)
            self.reading.start()
        self.reading.update(self.reading.task_ids[0], completed=done, total=total)
        if done == total:
            self.reading.stop()
            self.reading = None

    def start(self, index: int, stages: int, stage: Stage, done: int, steps: int) -> None:
        """Draw a bar of all the stage's steps."""
        from rich import progress
        from rich.table import Column

        self.steps, self.done, self.text = steps, done, ""

        def column(width: int) -> Column:
            return Column(min_width=width, no_wrap=True)

        self.label = f"stage {index + 1}/{stages} {stage.name}"
        epochs = f"epoch {{task.fields[epoch]}}/{stage.epochs}"
        self.bar = progress.Progress(
            progress.TextColumn(self.label, table_column=column(len(self.label))),
            progress.BarColumn(bar_width=12),
            progress.TextColumn(epochs, table_column=column(7 + 2 * len(str(stage.epochs)))),
            progress.TimeRemainingColumn(table_column=column(7)),
            progress.TextColumn("{task.fields[numbers]}", table_column=column(10)),
            console=self.console,
            transient=True,
        )
        self.bar.start()
        self.task = self.bar.add_task(
            "", total=stage.epochs * steps, completed=done * steps, epoch=done, numbers=""
        )

    def step(self, number: int, loss: float, lr: float) -> None:
        """Move the bar."""
        self.bar.update(
            self.task,
            completed=self.done * self.steps + number,
            numbers=self.text or f"loss {loss:.4f}  lr {lr:.4f}",
        )

    def epoch(self, record: dict[str, Any]) -> None:
        """Show the epoch's numbers beside the bar."""
        self.done, self.text = record["epoch"], describe(record)
        self.bar.update(self.task, completed=self.done * self.steps, epoch=self.done, numbers=self.text)

    def finish(self) -> None:
        """Leave the last numbers on screen, as a line that may wrap."""
        self.bar.stop()
        if self.text:
            self.line(f"{self.label}: epoch {self.done}  {self.text}")


def make_reporter(show: bool) -> Reporter:
    """A bar in a terminal, lines in a log or without rich, nothing where ``show`` is False."""
    if not show:
        return Reporter()
    if sys.stderr.isatty():
        try:
            return Bar()
        except ImportError:
            pass
    return Lines()
