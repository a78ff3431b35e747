"""Choices on validation: a search of a method's settings that never sees a test image.

A part of the training images is held out, and the data of a trial ends there: where test images would be, it
holds the validation images again. Every trial is a line in a file, and each is a function of those before it,
so an interrupted search goes on as if nothing had happened.

The teacher is the table's own. It was trained on all images of its classes, the held-out ones among them:
what a search finds on validation is for choosing, not for publishing.
"""

import hashlib
import json
from collections.abc import Generator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from refilled.data import Splits
from refilled.errors import UserError
from refilled.files import write_json, write_text
from refilled.methods import METHODS, get_method
from refilled.runs.prepare import OF_OPENING, read_splits
from refilled.runs.run import Run
from refilled.runs.settings import sort_settings
from refilled.runs.shared import Shared
from refilled.suite.cell import Cell
from refilled.suite.extras import library
from refilled.suite.ledger import commit
from refilled.suite.run import Bench
from refilled.suite.table import Point, Table
from refilled.suite.tiny import tiny_table
from refilled.training import LossIsNotFinite, Reporter, take_turns

VAL_FRACTION = 0.1
Range = tuple[float, float]
_AROUND: dict[str, Range] = {
    "strength": (1 / 20, 5),
    "tau_teacher": (1 / 4, 4),
    "tau_student": (1 / 4, 4),
    "comparison_tau_teacher": (1 / 5, 20),
    "comparison_tau_student": (1 / 5, 20),
}
"""Searched between these multiples of a setting's own value, on a logarithmic scale."""
_BETWEEN: dict[str, Range] = {"embedding_share": (0.1, 0.9)}
"""Searched between these values."""
_STARTING_TRIALS = 8
"""Drawn at random before the search follows what it has seen."""


def tune_table(
    table: Table,
    where: Mapping[str, tuple[Any, ...]],
    bench: Bench,
    folder: Path,
    trials: int,
    seeds: int,
    epochs: int | None = None,
    *,
    tiny: bool = False,
) -> list[Path]:
    """Search the settings of each chosen point of a table; points with nothing to search are left out.

    Args:
        table: which one; its ``measure`` is what is made large.
        where: which points.
        bench: trains the teachers, and says where, with what and how many at once.
        folder: where the choices are written, ``TABLE-….json`` for each point.
        trials: of each point, those made before included.
        seeds: each trial is the mean of this many trainings.
        epochs: of a trial; None: those of the table.
        tiny: on digits, in seconds.

    Returns:
        The files written.
    """
    if trials < 1 or seeds < 1:
        raise UserError(f"a search needs at least 1 trial and 1 seed, not {trials} and {seeds}")
    library("optuna", "tune", "tuning")  # before a teacher is trained
    shown = tiny_table(table) if tiny else table
    written = []
    for point in shown.points(where):
        cell = shown.cell(point)
        assert cell is not None, "points are those with a cell"
        if not search_space(cell):
            bench.say(f"{cell.describe()}: nothing to tune")
            continue
        search = Search(cell, bench, table.measured(point), seeds, epochs)
        path = folder / f"{_file_name(table, point)}.json"
        write_json(path, {"table": table.name, "point": dict(point)} | search.run(trials))
        bench.say(f"{path} is written")
        written.append(path)
    if not written:
        known = ", ".join([*_AROUND, *_BETWEEN])
        raise UserError(f"nothing that was chosen of {table.name} has a setting to tune: {known}")
    return written


def search_space(cell: Cell) -> dict[str, Range]:
    """Lower and upper end of each setting that is searched."""
    own = _own_settings(cell)
    around = {
        name: (own[name] * low, own[name] * high) for name, (low, high) in _AROUND.items() if own.get(name)
    }
    between = {name: ends for name, ends in _BETWEEN.items() if name in own}
    return {name: (_rounded(low), _rounded(high)) for name, (low, high) in (around | between).items()}


def propose(space: Mapping[str, Range], done: list[dict[str, Any]]) -> dict[str, float]:
    """Settings of the next trial, a function of the space and the trials before (optuna's TPE).

    Args:
        space: ends of each setting.
        done: trials with their ``settings`` and ``value``.
    """
    optuna = library("optuna", "tune", "tuning")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {
        name: optuna.distributions.FloatDistribution(low, high, log=name in _AROUND)
        for name, (low, high) in space.items()
    }
    sampler = optuna.samplers.TPESampler(seed=len(done), n_startup_trials=_STARTING_TRIALS)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for trial in done:
        study.add_trial(
            optuna.trial.create_trial(
                params=trial["settings"], distributions=distributions, value=trial["value"]
            )
        )
    asked = study.ask(distributions).params
    return {name: _rounded(asked[name]) for name in space}


class Search:
    """The search of one cell's settings.

    Args:
        cell: whose settings; it also says data, networks and training.
        bench: trains the teacher, and says where, with what and how many at once.
        measure: ``test_accuracy`` or ``ncm``, as a table names them; here of validation images.
        seeds: trainings of a trial.
        epochs: of a trial; None: the cell's.
    """

    def __init__(self, cell: Cell, bench: Bench, measure: str, seeds: int, epochs: int | None = None):
        shorter = {"epochs": epochs} if epochs is not None else {}
        self.cell = cell.with_settings(val_fraction=VAL_FRACTION, **shorter)
        self.bench, self.measure, self.seeds = bench, measure, seeds
        self.space = search_space(cell)
        same = json.dumps([self.cell.key, measure, seeds, self.space], sort_keys=True)
        key = hashlib.sha256(same.encode()).hexdigest()[:16]
        self.file = bench.places.work / "tuned" / f"{cell.data}-{cell.student}-{cell.method}-{key}.jsonl"
        self._worlds: dict[tuple[Any, ...], tuple[Splits, Shared]] = {}

    def run(self, trials: int) -> dict[str, Any]:
        """Make the trials that are missing; returns what was chosen, as plain data.

        The first trial has the cell's own settings: what is chosen is never worse, on validation.
        """
        self.bench.make_teachers([self.cell])
        done = self._read()
        while len(done) < trials:
            own = _own_settings(self.cell)
            settings = propose(self.space, done) if done else {name: own[name] for name in self.space}
            done.append({"settings": settings} | self._value(settings))
            write_text(self.file, "".join(json.dumps(trial) + "\n" for trial in done))
            values = ", ".join(f"{name} {value:g}" for name, value in settings.items())
            found = done[-1].get("problem") or f"validation {100 * done[-1]['value']:.2f} %"
            self.bench.say(f"[{len(done)}/{trials}] {values}: {found}")
        counted = done[:trials]
        best = max(counted, key=lambda trial: trial["value"])
        return {
            "settings": best["settings"],
            "measure": "ncm" if self.measure == "ncm" else "accuracy",
            "val_accuracy": best["value"],
            "val_accuracy_before": counted[0]["value"],
            "settings_before": counted[0]["settings"],
            "trials": len(counted),
            "seeds": self.seeds,
            "epochs": self._epochs(),
            "val_fraction": VAL_FRACTION,
            "space": {name: list(ends) for name, ends in self.space.items()},
            "cell": self.cell.to_json(),
            "commit": commit(),
        }

    def _read(self) -> list[dict[str, Any]]:
        if not self.file.exists():
            return []
        try:
            return [json.loads(line) for line in self.file.read_text(encoding="utf-8").splitlines()]
        except ValueError as error:
            raise UserError(f"{self.file} is damaged ({error}); delete it to search anew") from None

    def _epochs(self) -> int:
        return sort_settings(get_method(self.cell.method), self.cell.arguments())[0].epochs

    def _value(self, settings: dict[str, float]) -> dict[str, Any]:
        """Mean over the seeds; a training that breaks down classifies nothing."""
        tried = self.cell.with_settings(**settings)
        jobs = (self._validated(tried.with_seed(seed)) for seed in range(self.seeds))
        try:
            values = take_turns(jobs, self.bench.at_once)
        except LossIsNotFinite as problem:
            return {"value": 0.0, "problem": str(problem)}
        return {"value": sum(values) / len(values), "values": values}

    def _validated(self, cell: Cell) -> Generator[None, None, float]:
        splits, shared = self._world(cell)
        teacher = self.bench.places.teacher_folder(cell.teacher) if cell.teacher else None
        arguments = {k: v for k, v in cell.arguments().items() if k not in OF_OPENING}
        run = Run(
            teacher, cell.student, splits, cell.method, None,
            resume=False, reporter=Reporter(), shared=shared, device=str(self.bench.device),
            **(arguments | self.bench.settings),
        )  # fmt: skip
        seconds = yield from run.training()
        result = run.finish(seconds)
        return result.ncm if self.measure == "ncm" else result.accuracy

    def _world(self, cell: Cell) -> tuple[Splits, Shared]:
        if cell.world not in self._worlds:
            self._worlds[cell.world] = (self._splits(cell), Shared(self.bench.at_once))
        return self._worlds[cell.world]

    def _splits(self, cell: Cell) -> Splits:
        """The data without its test images: what measures the student finds validation images instead."""
        _, data_settings, _ = sort_settings(get_method(cell.method), cell.arguments())
        splits = read_splits(self.bench.places.data_spec(cell.data), data_settings, cell.seed)
        if not len(splits.val):
            raise UserError(f"{splits.name} has too few training images to hold some out for validation")
        return replace(splits, test=splits.val)


def _own_settings(cell: Cell) -> dict[str, Any]:
    """The method's settings in this cell, defaults included; none for what trains nothing."""
    return cell.resolved()["method"] if cell.method in METHODS else {}


def _rounded(value: float) -> float:
    """Three digits: what is printed is what was run."""
    return float(f"{value:.3g}")


def _file_name(table: Table, point: Point) -> str:
    words = (str(value) for value in (table.name, *point.values()))
    return "-".join("".join(c if c.isalnum() or c in "-._" else "-" for c in word) for word in words)
