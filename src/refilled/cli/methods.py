"""``refilled methods``"""

from dataclasses import asdict, dataclass
from typing import Annotated, Literal, get_args, get_origin, get_type_hints

from tyro.conf import Positional, arg

from refilled.cli.field_docs import field_docs
from refilled.cli.printing import say
from refilled.errors import unknown
from refilled.methods import METHODS
from refilled.runs.choice import AUTO, FEW, FEW_IMAGES, MANY


@dataclass
class MethodsCommand:
    """List the methods and their settings, for --method and --set; explain those of one.

    Example: refilled methods refilled-few
    """

    method: Annotated[Positional[str | None], arg(metavar="METHOD")] = None
    """Explain this one; none: list all."""

    def run(self) -> None:
        """Print each method with its settings' defaults, or one with what its settings mean."""
        if self.method is not None and self.method not in METHODS:
            raise unknown("method", self.method, METHODS)
        if self.method is None:
            say(
                f"{AUTO}: {MANY}, or {FEW} where there are fewer than {FEW_IMAGES} training images per class",
                style="bold",
            )
        for name in METHODS if self.method is None else [self.method]:
            _show(name, explained=self.method is not None)
        if self.method is None:
            say("refilled methods METHOD explains the settings of one.")


def _show(name: str, explained: bool) -> None:
    method = METHODS[name]
    say(f"{name}: {method.summary}", style="bold")
    hints, docs = get_type_hints(method.settings), field_docs(method.settings) if explained else {}
    for setting, value in asdict(method.settings()).items():
        choices = get_args(hints[setting]) if get_origin(hints[setting]) is Literal else ()
        say(f"    {setting}={value}" + (f"  ({', '.join(choices)})" if choices else ""))
        if setting in docs:
            say(f"        {docs[setting]}", style="dim")
