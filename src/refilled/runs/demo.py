"""The demo: a student of 4-9 with a teacher that only knows 0-7, on real handwritten digits."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refilled.evaluation import spread
from refilled.files import write_json
from refilled.runs.compare import VERDICT, Verdict, accuracy_text
from refilled.runs.distill import Result, distill

METHODS = {"student alone": "student", "ReFilled-EMB": "refilled-emb", "ReFilled": "refilled"}
TEACHER = {"student": "wrn-16-1", "classes": "0:8", "epochs": 30, "batch_size": 64, "val_fraction": 0.0}
STUDENT = {"student": "convnet-2", "classes": "4:10", "epochs": 200, "batch_size": 64, "val_fraction": 0.0}


@dataclass(frozen=True)
class Demo:
    """Results of each method, seed by seed, and the folder that holds the first distilled student."""

    results: dict[str, tuple[Result, ...]]
    teacher: Result
    out: Path

    @property
    def verdict(self) -> Verdict:
        """ReFilled against the student alone."""
        return Verdict(self.results["ReFilled"], self.results["student alone"])

    def rows(self) -> list[tuple[str, ...]]:
        """For a table: name, accuracy, gain over the student alone, training time."""
        alone = spread([r.accuracy for r in self.results["student alone"]]).mean
        rows = []
        for name, results in self.results.items():
            gain = 100 * (spread([r.accuracy for r in results]).mean - alone)
            seconds = spread([r.seconds for r in results]).mean
            rows.append(
                (
                    name,
                    accuracy_text(results),
                    "" if name == "student alone" else f"{gain:+.2f}",
                    f"{seconds:.1f} s",
                )
            )
        return rows


def run_demo(
    out: Path, *, seeds: int = 5, shots: int = 5, device: str = "auto", progress: bool = True, **settings: Any
) -> Demo:
    """Train the teacher on digits 0-7, then students of 4-9 with and without it.

    Args:
        out: run folder of the first seed's ReFilled student; the teacher's is ``out/teacher``.
        seeds: number of seeds; initial weights and training images differ.
        shots: training images of each class.
        device: where to compute.
        progress: show progress.
        settings: changes to the students' training, for tests.
    """
    settings = STUDENT | settings | {"shots": shots, "device": device}
    student = settings.pop("student")
    results: dict[str, list[Result]] = {name: [] for name in METHODS}
    teacher_settings: dict[str, Any] = TEACHER | {"device": device}
    teacher = distill(
        None,
        teacher_settings.pop("student"),
        "digits",
        "student",
        out / "teacher",
        progress=progress,
        **teacher_settings,
    )
    for seed in range(seeds):
        for name, method in METHODS.items():
            place = out / "refilled" if name == "ReFilled" and seed == 0 else None
            results[name].append(
                distill(
                    teacher.student if method != "student" else None,
                    student,
                    "digits",
                    method,
                    place,
                    progress=False,
                    seed=seed,
                    **settings,
                )
            )
    demo = Demo({name: tuple(found) for name, found in results.items()}, teacher, out)
    write_json(out / VERDICT, demo.verdict.to_json())
    return demo
