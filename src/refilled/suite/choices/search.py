"""A search of settings: trials in a file, each a function of those before it (optuna's TPE).

An interrupted search goes on as if nothing had happened.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from refilled.errors import UserError
from refilled.files import write_text
from refilled.lock import locked_if_free
from refilled.suite.extras import library

STARTING_TRIALS = 8
"""Drawn at random before the search follows what it has seen."""


@dataclass(frozen=True)
class Range:
    """What a setting is searched between."""

    low: float
    high: float
    log: bool = True
    """On a logarithmic scale."""
    whole: bool = False
    """Whole numbers only."""

    @property
    def ends(self) -> tuple[float, float]:
        """Lower and upper end."""
        return self.low, self.high

    def rounded(self, value: float) -> float:
        """To three digits: what is printed is what was run."""
        return round(value) if self.whole else _rounded(value)


class Trials(Protocol):
    """What is searched, and how a try is judged."""

    name: str
    """Beginning of the file's name."""
    space: dict[str, Range]
    """Of each setting that is searched."""
    own: dict[str, Any]
    """Settings before the search."""

    def identity(self) -> list[Any]:
        """All that makes another search of it, but for the space."""

    def value(self, settings: dict[str, float]) -> dict[str, Any]:
        """``value``, which is made large, and what else is worth keeping; ``problem`` where it broke down."""

    def described(self) -> dict[str, Any]:
        """What goes beside the choice."""


def space_around(
    own: Mapping[str, Any],
    multiples: Mapping[str, tuple[float, float]],
    between: Mapping[str, tuple[float, float]],
) -> dict[str, Range]:
    """The space of those settings that are there.

    Args:
        own: settings by name, with their values.
        multiples: searched between these multiples of a setting's own value, on a logarithmic scale; a whole
            number stays one.
        between: searched between these values, if a setting's own value is among them.
    """
    space = {}
    for name, (low, high) in multiples.items():
        value = own.get(name)
        if value and isinstance(value, int | float) and not isinstance(value, bool):
            whole = isinstance(value, int)
            # Two at least: two stages need a step each.
            ends = (max(2, round(value * low)), round(value * high)) if whole else (value * low, value * high)
            space[name] = Range(_rounded(ends[0]), _rounded(ends[1]), whole=whole)
    for name, (low, high) in between.items():
        value = own.get(name)
        if (
            isinstance(value, float) and low <= value <= high
        ):  # a stage that is left out has no length to search
            space[name] = Range(low, high, log=False)
    return space


def propose(space: Mapping[str, Range], done: list[dict[str, Any]]) -> dict[str, float]:
    """Settings of the next trial, a function of the space and the trials before.

    Args:
        space: of each setting.
        done: trials with their ``settings`` and ``value``.
    """
    optuna = library("optuna", "tune", "tuning")
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def distribution(setting: Range) -> Any:
        if setting.whole:
            return optuna.distributions.IntDistribution(int(setting.low), int(setting.high), log=setting.log)
        return optuna.distributions.FloatDistribution(*setting.ends, log=setting.log)

    distributions = {name: distribution(setting) for name, setting in space.items()}
    sampler = optuna.samplers.TPESampler(seed=len(done), n_startup_trials=STARTING_TRIALS)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for trial in done:
        study.add_trial(
            optuna.trial.create_trial(
                params=trial["settings"], distributions=distributions, value=trial["value"]
            )
        )
    asked = study.ask(distributions).params
    return {name: setting.rounded(asked[name]) for name, setting in space.items()}


class Search:
    """One search.

    Args:
        trials: what is searched.
        folder: where the file of its trials lies.
        say: told one line for each trial.
    """

    def __init__(self, trials: Trials, folder: Path, say: Any):
        self.trials, self.say = trials, say
        ends = {name: setting.ends for name, setting in trials.space.items()}
        same = json.dumps([*trials.identity(), ends], sort_keys=True)
        key = hashlib.sha256(same.encode()).hexdigest()[:16]
        self.file = folder / f"{trials.name}-{key}.jsonl"

    def run(self, count: int) -> dict[str, Any]:
        """Make the trials that are missing; returns what was chosen, as plain data.

        The first trial has the cell's own settings: what is chosen is never worse, on validation. A search
        is one process's at a time.
        """
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with locked_if_free(self.file.with_suffix(".lock"), "--work") as ours:
            if not ours:
                raise UserError(f"another process is making the trials of {self.file}; wait for it")
            return self._run(count)

    def _run(self, count: int) -> dict[str, Any]:
        trials, done = self.trials, self._read()
        while len(done) < count:
            first = {name: trials.own[name] for name in trials.space}
            settings = propose(trials.space, done) if done else first
            done.append({"settings": settings} | trials.value(settings))
            write_text(self.file, "".join(json.dumps(trial) + "\n" for trial in done))
            values = ", ".join(f"{name} {value:g}" for name, value in settings.items())
            found = done[-1].get("problem") or f"validation {100 * done[-1]['value']:.2f} %"
            self.say(f"[{len(done)}/{count}] {values}: {found}")
        counted = done[:count]
        best = max(counted, key=lambda trial: trial["value"])
        return {
            "settings": best["settings"],
            "val_accuracy": best["value"],
            "val_accuracy_before": counted[0]["value"],
            "settings_before": counted[0]["settings"],
            "trials": len(counted),
            "space": {name: list(setting.ends) for name, setting in trials.space.items()},
        } | trials.described()

    def _read(self) -> list[dict[str, Any]]:
        if not self.file.exists():
            return []
        try:
            return [json.loads(line) for line in self.file.read_text(encoding="utf-8").splitlines()]
        except ValueError as error:
            raise UserError(f"{self.file} is damaged ({error}); delete it to search anew") from None


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
