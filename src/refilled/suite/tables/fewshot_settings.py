"""Settings of few-shot methods: what was thought of for each, and what was chosen on validation tasks."""

from dataclasses import asdict
from typing import Any

from refilled.methods.refilled_settings import FewSettings, TwoStageSettings

Settings = dict[str, Any]

_STEPS: Settings = {"steps": 50}
_KNOWING: Settings = {"statistics": "known", "head": "centres"}
_FRESH: Settings = {"statistics": "batch", "head": "fresh", "head_lr": 0.1}
SCHEDULES: dict[str, Settings] = {
    "protonet": {"episodes": 2_000},
    "feat": {"episodes": 2_000},
    "maml": {"iterations": 2_000},
    "fine-tune": _STEPS | _KNOWING,
    "refilled": _STEPS | _KNOWING,
    "student": _STEPS | _FRESH,
    "refilled-scratch": _STEPS | _FRESH,
}
"""How long each trains. What learns to learn does so for shorter than in its paper, but starts from a trained
network; the table says so. Students that start from one keep its statistics, and start as the nearest class
mean: with statistics of five images and a fresh head, fine-tuning loses seven points to that on validation
tasks of one shot."""

_FEW = asdict(FewSettings())
_TEACHINGS: dict[str, Settings] = {
    "two stages": asdict(TwoStageSettings()) | {"posterior": "scaled"},
    "centres and imitation": _FEW,
    "centres": _FEW | {"imitation": 0.0},
    "imitation": _FEW | {"strength": 0.0},
}
"""Spelt out, so that what becomes a default changes nothing here."""
_SOFT = {"posterior": "cosine", "tau_student": 2.0}
_FROM_WEIGHTS: dict[str, Settings] = {
    "two stages": asdict(TwoStageSettings()) | _SOFT | {"strength": 0.5, "weight": "none"},
    "centres and imitation": _FEW | _SOFT | {"strength": 0.5},
    "centres": _FEW | _SOFT | {"strength": 0.5, "imitation": 0.0},
    "imitation": _FEW | {"strength": 0.0},
}
"""For students that know something already: both at one temperature, so that their own logits, which start as
cosines with the classes' centres, are what the teacher's are compared with."""
_GENTLE: dict[str, Settings] = {
    "lr 0.0001": {"lr": 0.0001, "head_lr": 0.001},
    "lr 0.0003": {"lr": 0.0003, "head_lr": 0.003},
    "lr 0.001": {"lr": 0.001, "head_lr": 0.01},
    "lr 0.003": {"lr": 0.003, "head_lr": 0.01},
}
_SCRATCH: dict[str, Settings] = {"lr 0.03": {"lr": 0.03}, "lr 0.1": {"lr": 0.1}}


def _taught(teachings: dict[str, Settings], rates: dict[str, Settings]) -> dict[str, Settings]:
    return {
        f"{name}, {rate}": own | faster for name, own in teachings.items() for rate, faster in rates.items()
    }


def _penalties(*values: float) -> dict[str, Settings]:
    return {f"penalty {value:g}": {"penalty": value} for value in values}


def _temperatures(*values: float) -> dict[str, Settings]:
    return {f"temperature {value:g}": {"temperature": value} for value in values}


CANDIDATES: dict[str, dict[str, Settings]] = {
    "lr": _penalties(1.0, 10.0, 100.0),
    "svm": _penalties(0.1, 1.0, 10.0),
    "protonet": _temperatures(16.0, 64.0),
    "feat": _temperatures(16.0, 64.0),
    "maml": {"lr 0.0001": {"lr": 0.0001}, "lr 0.001": {"lr": 0.001}},
    "fine-tune": _GENTLE,
    "student": _SCRATCH,
    "refilled": _taught(_FROM_WEIGHTS, _GENTLE),
    "refilled-scratch": _taught(_TEACHINGS, _SCRATCH),
}
"""By method and name. *centres* is the distillation from the class centres without a first stage."""

CHOICE_SHOTS = (1, 5, 30)
"""Shots that choices are made for; 10 shots have those of 5."""
CHOSEN: dict[tuple[str, str | None, int], str] = {
    ("lr", None, 1): "penalty 1",
    ("lr", None, 5): "penalty 10",
    ("lr", None, 30): "penalty 10",
    ("svm", None, 1): "penalty 0.1",
    ("svm", None, 5): "penalty 1",
    ("svm", None, 30): "penalty 1",
    ("protonet", None, 1): "temperature 16",
    ("protonet", None, 5): "temperature 16",
    ("protonet", None, 30): "temperature 16",
    ("feat", None, 1): "temperature 16",
    ("feat", None, 5): "temperature 16",
    ("feat", None, 30): "temperature 16",
    ("maml", None, 1): "lr 0.001",
    ("maml", None, 5): "lr 0.0001",
    ("maml", None, 30): "lr 0.001",
    ("fine-tune", None, 1): "lr 0.0001",
    ("fine-tune", None, 5): "lr 0.0001",
    ("fine-tune", None, 30): "lr 0.001",
    ("student", None, 1): "lr 0.03",
    ("student", None, 5): "lr 0.03",
    ("student", None, 30): "lr 0.1",
    ("refilled", "convnet-4", 1): "centres, lr 0.0001",
    ("refilled", "convnet-4", 5): "centres, lr 0.0001",
    ("refilled", "convnet-4", 30): "centres, lr 0.001",
    ("refilled-scratch", "convnet-4", 1): "imitation, lr 0.1",
    ("refilled-scratch", "convnet-4", 5): "centres and imitation, lr 0.1",
    ("refilled-scratch", "convnet-4", 30): "centres, lr 0.1",
    ("refilled", "resnet-12", 1): "two stages, lr 0.0001",
    ("refilled", "resnet-12", 5): "two stages, lr 0.0003",
    ("refilled", "resnet-12", 30): "centres, lr 0.001",
    ("refilled-scratch", "resnet-12", 1): "imitation, lr 0.1",
    ("refilled-scratch", "resnet-12", 5): "centres and imitation, lr 0.1",
    ("refilled-scratch", "resnet-12", 30): "centres, lr 0.03",
}
"""The best on validation tasks (results/fewshot-choices.md), by (method, its teacher or None, shots)."""


def chosen_settings(method: str, teacher: str | None, shots: int) -> Settings:
    """The schedule of a method, with the candidate that was chosen for it, if it has any."""
    own = SCHEDULES.get(method, {})
    name = CHOSEN.get((method, teacher, max(known for known in CHOICE_SHOTS if known <= shots)))
    return own | CANDIDATES[method][name] if name is not None else dict(own)
