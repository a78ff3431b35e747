"""Did the teacher help? The student with it against the student alone, at equal epochs, over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from refilled.checks import check_number
from refilled.data import Splits
from refilled.errors import UserError
from refilled.evaluation import counting_error, half_interval, paired_error, spread
from refilled.files import read_json, write_json
from refilled.methods import get_method
from refilled.models import Network
from refilled.runs.choice import AUTO, choose_method
from refilled.runs.distill import distill_seeds
from refilled.runs.result import Result
from refilled.runs.settings import ImageSettings, field_names, sort_settings
from refilled.runs.shared import Shared
from refilled.training import TrainSettings, make_reporter, pick_device

VERDICT = "verdict.json"
FEWEST_TEST_IMAGES = 20  # on fewer nothing is clear
SEEDS_AT_ONCE = 4  # on a GPU
WIDE = 3.0  # points: an interval wider than this to each side says that too little was measured
NOTABLY = 0.02  # of accuracy: by this much the teacher itself must be better to be worth a word


@dataclass(frozen=True)
class Verdict:
    """Results with and without the teacher, seed by seed; both had the same number of epochs."""

    with_teacher: tuple[Result, ...]
    alone: tuple[Result, ...]
    keeping: bool = False
    """Whether both also learned the teacher's classes; of those there are no images to measure."""

    @property
    def differences(self) -> list[float]:
        """Accuracy with the teacher minus accuracy alone, for each seed."""
        return [a.accuracy - b.accuracy for a, b in zip(self.with_teacher, self.alone)]

    @property
    def gain(self) -> float:
        """Mean difference."""
        return spread(self.differences).mean

    @property
    def doubt(self) -> float:
        """Half the 95 % interval of the gain: over seeds, or for one seed over the test images alone."""
        a, b = self.with_teacher[0], self.alone[0]
        if len(self.alone) > 1:
            return max(half_interval(self.differences), paired_error(self.gain, a.test_images))
        return counting_error([a.accuracy, b.accuracy], a.test_images)

    @property
    def answer(self) -> str:
        """``helped``, ``hurt`` or ``unclear``."""
        if abs(self.gain) <= self.doubt or self.alone[0].test_images < FEWEST_TEST_IMAGES:
            return "unclear"
        return "helped" if self.gain > 0 else "hurt"

    def sentence(self) -> str:
        """The verdict for a person."""
        gain, doubt, seeds = 100 * self.gain, 100 * self.doubt, len(self.alone)
        basis = f"{seeds} seeds" if seeds > 1 else "one seed: of the draw of test images alone"
        low, high = max(gain - doubt, -100.0), min(gain + doubt, 100.0)  # accuracies differ by no more
        figures = f"{gain:+.2f} points (95 % interval {low:+.2f} to {high:+.2f}, {basis})"
        if self.answer == "unclear" and doubt > WIDE:
            return f"Too early to say: {figures}. More seeds narrow it: --seeds {max(5, 2 * seeds)}."
        opening = {
            "helped": "The teacher helped",
            "hurt": "The teacher did harm",
            "unclear": "No clear difference",
        }
        more = "" if seeds > 1 else " Repeat with --seeds 3 to be surer."
        where = " This is about images of the student's own classes." if self.keeping else ""
        return f"{opening[self.answer]}: {figures}.{where}{more}"

    def hint(self) -> str:
        """What the teacher's own embedding says about its fitness and the student's, or nothing."""
        ncm, alone = self.with_teacher[0].teacher_ncm, spread([r.accuracy for r in self.alone]).mean
        taught = spread([r.accuracy for r in self.with_teacher]).mean
        if ncm is None or self.keeping:  # one that keeps tells more classes apart than that is about
            return ""
        if ncm > max(taught, alone) + NOTABLY:
            takes_more = get_method(self.with_teacher[0].method).unlabelled
            advice = "more images without labels (--unlabelled) may bring more of it across. Where "
            return (
                f"By itself the teacher tells these classes apart better ({100 * ncm:.1f} %) than the "
                f"student does: {advice if takes_more else 'where '}its size is no problem, its nearest "
                f"class mean is the better classifier."
            )
        if ncm >= alone or self.answer == "helped":
            return ""
        return (
            f"By itself the teacher tells these classes apart worse ({100 * ncm:.1f} %) than the student "
            f"alone ({100 * alone:.1f} %): one of more related classes, or better trained, may do better."
        )

    def rows(self) -> list[tuple[str, ...]]:
        """For a table: name, accuracy, mean training time, epochs."""
        return [
            (
                name,
                accuracy_text(results),
                f"{spread([r.seconds for r in results]).mean:.1f} s",
                str(results[0].epochs),
            )
            for name, results in (
                (self.with_teacher[0].method, self.with_teacher),
                ("student that only keeps" if self.keeping else "student alone", self.alone),
            )
        ]

    def to_json(self) -> dict[str, Any]:
        """Everything, for ``verdict.json``."""
        return {
            "answer": self.answer,
            "sentence": self.sentence(),
            "gain": self.gain,
            "doubt": self.doubt,
            "overlap": self.with_teacher[0].overlap,
            "with_teacher": [result.to_json() for result in self.with_teacher],
            "alone": [result.to_json() for result in self.alone],
        }


def accuracy_text(results: Sequence[Result]) -> str:
    """``87.31 ± 0.52 %``, or without a spread for one run."""
    measured = spread([100 * result.accuracy for result in results])
    return f"{measured.mean:.2f} ± {measured.std:.2f} %" if measured.runs > 1 else f"{measured.mean:.2f} %"


def compare(
    teacher: str | Path | Network,
    student: str | Path,
    data: str | Path | Splits,
    method: str = "refilled",
    out: str | Path | None = None,
    *,
    seeds: int = 1,
    alone: bool = True,
    together: int | None = None,
    resume: bool = False,
    progress: bool = True,
    **settings: Any,
) -> Verdict:
    """Distil for several seeds, and train the student alone for the same total number of epochs.

    The first seed's run is ``out`` itself; the others are whole run folders in ``out/seeds``.

    Args:
        teacher: as for :func:`refilled.distill`; all other arguments too.
        student: a fresh one is made for every run, so it is given by name.
        data: see :func:`refilled.distill`.
        method: the method to judge.
        out: run folder.
        seeds: number of seeds, from ``seed`` (default 0) upwards.
        alone: train the student alone too; without it the verdict compares nothing and has no ``alone``.
        together: how many seeds are trained at the same time; None: on a GPU up to four, else one.
        resume: go on with an interrupted comparison in ``out``.
        progress: show progress.
        settings: for both; the method's own settings are for the method only, but for ``mixtures``, which the
            student alone sees too.
    """
    if seeds < 1:
        raise UserError(f"--seeds must be at least 1, not {seeds}")
    if alone and method != AUTO and not get_method(method).needs_teacher:
        raise UserError(f"method {method} is the student alone; there is nothing to compare it with")
    if isinstance(student, Network):
        raise UserError("a comparison makes a fresh student for every run; give the student by name")
    check_number("together", together, least=1)
    if resume and alone and out is not None:
        _check_seeds(Path(out).expanduser() / VERDICT, seeds)
    first = settings.pop("seed", 0)
    common = {*field_names(TrainSettings), *field_names(ImageSettings)}  # only a teacher makes use of more
    shared = {name: value for name, value in settings.items() if name in common}
    base = Path(out).expanduser() if out is not None else None
    reporter = make_reporter(progress)
    on_gpu = pick_device(settings.get("device", "auto")).type == "cuda"
    at_once = min(seeds, together or (SEEDS_AT_ONCE if on_gpu else 1))
    in_common = Shared(at_once, base)
    method = choose_method(method, data, base, settings | {"seed": first}, in_common)
    own = sort_settings(get_method(method), settings)[2]
    if getattr(own, "mixtures", False):  # the teacher's doing is what it adds to that
        shared["mixtures"] = True
    labelled = replace(data, unlabelled=None) if isinstance(data, Splits) else data
    with_teacher: list[Result] = []
    without: list[Result] = []
    for start in range(0, seeds, at_once):
        numbers = range(start, min(start + at_once, seeds))
        chosen = [first + number for number in numbers]
        said = f"seed {chosen[0]}" if len(chosen) == 1 else f"seeds {chosen[0]} to {chosen[-1]}"
        if seeds > 1 or alone:
            reporter.line(f"--- {said} ({numbers[-1] + 1} of {seeds}): {method}")
        places = [_place(base, method, seed, seed == first) for seed in chosen]
        with_teacher += distill_seeds(
            teacher, student, data, method, places, chosen,
            resume=resume, reporter=reporter, shared=in_common, **settings,
        )  # fmt: skip
        if alone:
            reporter.line(f"--- {said} ({numbers[-1] + 1} of {seeds}): student alone, equal epochs")
            places = [_place(base, "student", seed, False) for seed in chosen]
            keeps = settings.get("keep_teacher_classes", False)  # those need it even without a method
            without += distill_seeds(
                teacher if keeps else None, student, labelled, "student", places, chosen,
                resume=resume, reporter=reporter, shared=in_common, **shared,
            )  # fmt: skip
    verdict = Verdict(tuple(with_teacher), tuple(without), settings.get("keep_teacher_classes", False))
    if base is not None and alone:
        write_json(base / VERDICT, verdict.to_json())
    return verdict


def _check_seeds(verdict: Path, seeds: int) -> None:
    """A verdict over more seeds is not given up for one over fewer."""
    alone = read_json(verdict).get("alone") if verdict.exists() else None
    there = len(alone) if isinstance(alone, list) else 0
    if there > seeds:
        raise UserError(
            f"{verdict} is over {there} seeds already; go on with as many or more: --seeds {there}"
        )


def _place(base: Path | None, method: str, seed: int, is_base: bool) -> Path | None:
    if base is None or is_base:
        return base
    return base / "seeds" / f"{method}-seed{seed}"
