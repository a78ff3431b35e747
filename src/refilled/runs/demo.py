"""The demo: a tiny student of the digits 4-9 with a teacher that only knows 0-7.

Networks and epochs were chosen on validation digits (student alone 67.3 %, ReFilled 71.4 %, eight seeds);
the method's settings are its defaults. Larger students learn these digits well alone, and gain less.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refilled.checks import check_number
from refilled.data import open_data
from refilled.errors import UserError
from refilled.evaluation import spread
from refilled.files import write_json
from refilled.runs.compare import VERDICT, Verdict, accuracy_text
from refilled.runs.distill import distill
from refilled.runs.result import Result
from refilled.training import make_reporter

ALONE, METHOD = "student alone", "ReFilled"
METHODS = {ALONE: "student", "ReFilled, two stages": "refilled-two-stages", METHOD: "refilled-few"}
"""The last is what ``refilled distill`` takes for so few images."""
TEACHER_NETWORK, STUDENT_NETWORK = "convnet-3", "convnet-1"
TEACHER: dict[str, Any] = {"classes": "0:8", "epochs": 30, "batch_size": 64, "val_fraction": 0.0}
STUDENT: dict[str, Any] = {"classes": "4:10", "epochs": 200, "batch_size": 64, "val_fraction": 0.0}


@dataclass(frozen=True)
class Demo:
    """Results of each method, seed by seed."""

    results: dict[str, tuple[Result, ...]]
    student: Path
    """Run folder of the first distilled student."""

    @property
    def verdict(self) -> Verdict:
        """ReFilled against the student alone."""
        return Verdict(self.results[METHOD], self.results[ALONE])

    def rows(self) -> list[tuple[str, ...]]:
        """For a table: name, accuracy, gain over the student alone, training time."""
        alone = spread([r.accuracy for r in self.results[ALONE]]).mean
        rows: list[tuple[str, ...]] = []
        for name, results in self.results.items():
            gain = 100 * (spread([r.accuracy for r in results]).mean - alone)
            seconds = spread([r.seconds for r in results]).mean
            shown = "" if name == ALONE else f"{gain:+.2f}"
            rows.append((name, accuracy_text(results), shown, f"{seconds:.1f} s"))
        return rows


def run_demo(
    out: Path,
    *,
    seeds: int = 10,
    shots: int = 5,
    device: str = "auto",
    progress: bool = True,
    **settings: Any,
) -> Demo:
    """Train the teacher on digits 0-7, then students of 4-9 with and without it, all for equal epochs.

    Args:
        out: folder to write: ``teacher`` and ``student`` are run folders in it.
        seeds: number of seeds; initial weights and training images differ.
        shots: training images of each class.
        device: where to compute.
        progress: show progress on standard error.
        settings: changes to the training of all networks, for tests.
    """
    if out.exists():
        raise UserError(f"{out} exists already; choose another --out")
    check_number("seeds", seeds, least=1)
    open_data(
        "digits", classes=STUDENT["classes"], shots=shots, val_fraction=STUDENT["val_fraction"]
    )  # so many?
    reporter = make_reporter(progress)
    common = {"device": device, "progress": False} | settings
    reporter.line("teacher: learns the digits 0-7")
    teacher = distill(None, TEACHER_NETWORK, "digits", "student", out / "teacher", **(TEACHER | common))
    reporter.line(f"teacher: {100 * teacher.accuracy:.1f} % of its own digits")
    results: dict[str, list[Result]] = {name: [] for name in METHODS}
    for seed in range(seeds):
        for name, method in METHODS.items():
            guide = None if name == ALONE else teacher.student
            place = out / "student" if name == METHOD and seed == 0 else None
            learned = distill(
                guide, STUDENT_NETWORK, "digits", method, place, seed=seed, shots=shots, **(STUDENT | common)
            )
            results[name].append(learned)
        scores = ", ".join(f"{name} {100 * found[-1].accuracy:.1f} %" for name, found in results.items())
        reporter.line(f"students of 4-9, seed {seed + 1} of {seeds}: {scores}")
    demo = Demo({name: tuple(found) for name, found in results.items()}, out / "student")
    write_json(out / VERDICT, demo.verdict.to_json())
    return demo
