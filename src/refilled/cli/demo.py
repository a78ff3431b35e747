"""``refilled demo``"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from refilled.cli.options import fresh_folder
from refilled.cli.printing import print_table, say
from refilled.runs.demo import Demo, run_demo


@dataclass
class DemoCommand:
    """See it work: a teacher of the digits 0-7, a student that must learn 4-9 from a few images.

    Real handwritten digits, about a minute on two cores. Prints a table: student alone, ReFilled's two
    stages, its recipe for few images, at equal epochs over several seeds, and leaves a run folder that
    `refilled evaluate` can load.
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


def print_demo(demo: Demo) -> None:
    """The demo's table and verdict."""
    print_table(("", "test accuracy", "gain", "training time"), demo.rows())
    say(demo.verdict.sentence(), style="bold")
    program = "refilled" if shutil.which("refilled") else "python -m refilled"
    say(f"Try: {program} evaluate {demo.student} digits")
