"""Settings of few-shot methods by name: each method has those that do something in it, and no others."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from refilled.checks import check_number
from refilled.errors import unknown
from refilled.fewshot.meta import MetaTraining
from refilled.fewshot.neg_cosine import NegCosineTraining
from refilled.fewshot.training import FineTuning, TaskTraining
from refilled.methods.refilled_settings import FewSettings, TunedSettings

OF_THE_TASKS = ("ways", "shots", "seed")
"""Fields that are no settings: tasks of the seen classes have the shape of those that are judged."""


@dataclass(frozen=True)
class NoSettings:
    """Nothing to choose."""


@dataclass(frozen=True)
class RegressionSettings:
    """Of logistic regression."""

    penalty: float = 10.0
    """Factor of the loss against the weights' squared length; scikit-learn's C."""

    def __post_init__(self) -> None:
        check_number("penalty", self.penalty, above=0)


@dataclass(frozen=True)
class SupportVectorSettings(RegressionSettings):
    """Of the support vector machine."""

    penalty: float = 1.0


def _check_stages(settings: "RefilledTaskSettings | RefilledScratchSettings") -> None:
    """Each of two stages needs a step."""
    if settings.embedding_share:
        check_number("steps of two stages", settings.steps, least=2)


@dataclass(frozen=True)
class RefilledTaskSettings(TunedSettings, FineTuning):
    """Of ReFilled, and how long and how fast a student learns a task that starts from a trained network."""

    def __post_init__(self) -> None:
        TunedSettings.__post_init__(self)
        FineTuning.__post_init__(self)
        _check_stages(self)


@dataclass(frozen=True)
class RefilledScratchSettings(FewSettings, TaskTraining):
    """The same for a student that starts from scratch."""

    def __post_init__(self) -> None:
        FewSettings.__post_init__(self)
        TaskTraining.__post_init__(self)
        _check_stages(self)


@dataclass(frozen=True)
class ProtoNetSettings(MetaTraining):
    """Of ProtoNet."""

    temperature: float = 1.0
    """Squared distances are divided by it."""


@dataclass(frozen=True)
class FeatSettings(MetaTraining):
    """Of FEAT."""

    temperature: float = 64.0
    """Squared distances are divided by it."""
    balance: float = 0.1
    """Weight of the contrastive term."""


@dataclass(frozen=True)
class NegCosineSettings(NegCosineTraining):
    """Of Neg-Cosine: the network's training, and that of a task's classifier."""

    task_steps: int = 100
    task_lr: float = 0.01


def make_settings(kind: type, method: str, given: dict[str, Any]) -> Any:
    """The settings of a method, defaults but for those given; an unknown name is refused."""
    known = [field.name for field in dataclasses.fields(kind) if field.name not in OF_THE_TASKS]
    for name in given:
        if name not in known:
            raise unknown(f"setting of few-shot method {method}", name, known)
    return kind(**given)


def plain_settings(settings: Any) -> dict[str, Any]:
    """All settings as plain data, those with their default value too."""
    return {name: value for name, value in dataclasses.asdict(settings).items() if name not in OF_THE_TASKS}
