"""Settings of few-shot methods: what was thought of for each, and what was chosen on validation tasks."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from refilled.methods.refilled_settings import FewSettings, TwoStageSettings

Settings = dict[str, Any]

_STEPS = {"steps": 50}
SCHEDULES: dict[str, Settings] = {
    "protonet": {"episodes": 2_000},
    "feat": {"episodes": 2_000},
    "maml": {"iterations": 4_000},
    "fine-tune": _STEPS,
    "refilled": _STEPS,
    "student": _STEPS,
    "refilled-scratch": _STEPS,
}
"""How long each trains. Shorter than their papers': ProtoNet and FEAT start from a trained network, MAML has
a fifteenth of its 60,000 iterations. The table says so."""

_TEACHINGS: dict[str, Settings] = {
    "two stages": asdict(TwoStageSettings()) | {"posterior": "scaled"},
    "centres and imitation": asdict(FewSettings()),
    "centres": asdict(FewSettings()) | {"imitation": 0.0},
    "imitation": asdict(FewSettings()) | {"strength": 0.0},
}
"""Spelt out, so that what becomes a default changes nothing here."""
_TUNING, _SCRATCH = (0.001, 0.004, 0.016, 0.064), (0.03, 0.1)


def _by_rate(rates: Iterable[float]) -> dict[str, Settings]:
    return {f"lr {rate:g}": {"lr": rate} for rate in rates}


def _taught(rates: tuple[float, ...]) -> dict[str, Settings]:
    return {
        f"{name}, {rate}": own | faster
        for name, own in _TEACHINGS.items()
        for rate, faster in _by_rate(rates).items()
    }


def _penalties(*values: float) -> dict[str, Settings]:
    return {f"penalty {value:g}": {"penalty": value} for value in values}


CANDIDATES: dict[str, dict[str, Settings]] = {
    "lr": _penalties(1.0, 10.0, 100.0),
    "svm": _penalties(0.1, 1.0, 10.0),
    "fine-tune": _by_rate(_TUNING),
    "student": _by_rate(_SCRATCH),
    "refilled": _taught(_TUNING),
    "refilled-scratch": _taught(_SCRATCH),
}
"""By method and name. *centres* is the distillation from the class centres without a first stage."""

CHOICE_SHOTS = (1, 5)
"""Shots that choices are made for; more shots have those of 5."""
CHOSEN: dict[tuple[str, str | None, int], str] = {}
"""The best on validation tasks (results/fewshot-choices.md), by (method, its teacher or None, shots)."""


def chosen_settings(method: str, teacher: str | None, shots: int) -> Settings:
    """The schedule of a method, with the candidate that was chosen for it, if it has any."""
    own = SCHEDULES.get(method, {})
    name = CHOSEN.get((method, teacher, max(known for known in CHOICE_SHOTS if known <= shots)))
    return own | CANDIDATES[method][name] if name is not None else dict(own)
