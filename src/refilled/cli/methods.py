"""``refilled methods``"""

from dataclasses import asdict, dataclass
from typing import Literal, get_args, get_origin, get_type_hints

from refilled.cli.printing import say
from refilled.methods import METHODS
from refilled.runs.choice import AUTO, FEW, FEW_IMAGES, MANY


@dataclass
class MethodsCommand:
    """List the methods and their settings, for --method and --set."""

    def run(self) -> None:
        """Print each method with its settings' defaults."""
        say(
            f"{AUTO}: {MANY}, or {FEW} where there are fewer than {FEW_IMAGES} training images per class",
            style="bold",
        )
        for name, method in METHODS.items():
            say(f"{name}: {method.summary}", style="bold")
            hints = get_type_hints(method.settings)
            for setting, value in asdict(method.settings()).items():
                choices = get_args(hints[setting]) if get_origin(hints[setting]) is Literal else ()
                say(f"    {setting}={value}" + (f"  ({', '.join(choices)})" if choices else ""))
