"""What is shown on the terminal."""

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from refilled.runs import Result
from refilled.runs.compare import accuracy_text

console = Console(soft_wrap=True)


def say(text: str, style: str = "") -> None:
    """Print a line as it is: brackets in a person's names are no markup."""
    console.print(Text(text, style=style))


def print_table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """A plain table, the first column to the left and the others to the right."""
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)


def print_accuracy(results: tuple[Result, ...], out: Path) -> None:
    """One line for runs that are compared with nothing."""
    first = results[0]
    time = f"{first.epochs} epoch{'s' * (first.epochs != 1)}, {first.seconds:.1f} s"
    say(f"test accuracy {accuracy_text(results)} ({time}), in {out}")
