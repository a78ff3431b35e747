"""``refilled evaluate``"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from refilled.cli.options import Data
from refilled.cli.printing import say
from refilled.runs import evaluate


@dataclass
class EvaluateCommand:
    """Accuracy of a finished run's student on some data; classes are matched by name.

    Example: refilled evaluate runs/mine photos
    """

    run_folder: Annotated[Positional[Path], arg(metavar="RUN")]
    """A finished run folder."""
    data: Data
    part: str = "test"
    """test, val or train; where a split has to be made it is the run's own. all: every image, for data of
    which the student has seen none."""
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
        if found.learned:
            say("the student has learned from images among these", style="dim")
        if found.apart:
            say(
                f"{found.apart} more are in other parts, divided as the run divides its own data; if the "
                f"student has seen none of these images, --part all takes every one",
                style="dim",
            )
        measured = [(name, share) for name, share in found.per_class.items() if share is not None]
        worst = sorted(measured, key=lambda item: item[1])[:5]
        say("hardest classes: " + ", ".join(f"{name} {100 * share:.0f} %" for name, share in worst))
