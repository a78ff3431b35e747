"""Trials of trainings: a part of the training images is held out, and the data of a trial ends there."""

from collections.abc import Generator
from typing import Any

from refilled.data import Splits
from refilled.errors import UserError
from refilled.methods import METHODS, get_method
from refilled.methods.idle import idle_settings
from refilled.runs.run import Run
from refilled.runs.settings import sort_settings
from refilled.runs.shared import Shared
from refilled.suite.cell import Cell
from refilled.suite.choices.search import Range, space_around
from refilled.suite.judging import OverSeeds
from refilled.suite.old_and_new import judge_student
from refilled.suite.run import Bench
from refilled.suite.validation import blind, once_open, without_test
from refilled.training import LossIsNotFinite, Reporter, take_turns

VAL_FRACTION = 0.1
AROUND: dict[str, tuple[float, float]] = {
    "strength": (1 / 20, 5),
    "tau_teacher": (1 / 4, 4),
    "tau_student": (1 / 4, 4),
    "comparison_tau_teacher": (1 / 5, 20),
    "comparison_tau_student": (1 / 5, 20),
    "imitation": (1 / 10, 5),
    **dict.fromkeys(("tau", "turned_tau", "similarity_tau"), (1 / 4, 4)),
    **dict.fromkeys(
        (
            "weight", "kd_weight", "vid_weight", "distance_weight", "angle_weight", "similarity_weight",
            "turned_weight", "alpha", "beta", "gamma", "ewc_strength",
        ),
        (1 / 10, 10),
    ),
}  # fmt: skip
"""Searched between these multiples of a setting's own value, whichever method has it: those that a method is
compared with are tuned as it is."""
BETWEEN = {"embedding_share": (0.1, 0.9), "hint_share": (0.1, 0.9)}
_SHARE = (0.1, 1.0)
"""The same of a weight that can be at most 1."""
_ACCURACIES = ("test_accuracy", "val_accuracy")
"""Here the same: there are no test images."""


class TrainingTrials:
    """Tries settings of one cell.

    Args:
        cell: whose settings; it also says data, networks and training.
        bench: says where, with what and how many at once; the teacher is there.
        judge: seeds; each trial is the mean of as many trainings.
        measure: ``test_accuracy``, ``ncm`` or ``joint_…``, as a table names them; here of validation images.
        epochs: of a trial; None: the cell's.
    """

    def __init__(self, cell: Cell, bench: Bench, judge: OverSeeds, measure: str, epochs: int | None = None):
        shorter = {"epochs": epochs} if epochs is not None else {}
        self.cell = blind(cell.with_settings(val_fraction=VAL_FRACTION, **shorter))
        self.bench, self.measure, self.seeds = bench, measure, judge.seeds
        self.space, self.own = self.space_of(cell), _own_settings(cell)
        self.name = f"{cell.data}-{cell.student}-{cell.method}"
        self._worlds: dict[tuple[Any, ...], tuple[Splits, Shared]] = {}

    @staticmethod
    def space_of(cell: Cell) -> dict[str, Range]:
        """What is searched of a cell; nothing for what trains nothing."""
        own = at_work(_own_settings(cell))
        shares = {name: _SHARE for name in AROUND if name in own and _is_share(cell.method, name)}
        multiples = {name: ends for name, ends in AROUND.items() if name not in shares}
        return space_around(own, multiples, BETWEEN | shares)

    def identity(self) -> list[Any]:
        """All that makes another search of it, but for the space."""
        return [self.cell.key, self.measure, self.seeds]

    def value(self, settings: dict[str, float]) -> dict[str, Any]:
        """Mean over the seeds; a training that breaks down classifies nothing."""
        tried = self.cell.with_settings(**settings)
        jobs = (self._validated(tried.with_seed(seed)) for seed in range(self.seeds))
        try:
            values = take_turns(jobs, self.bench.trainings.at_once)
        except LossIsNotFinite as problem:
            return {"value": 0.0, "problem": str(problem)}
        return {"value": sum(values) / len(values), "values": values}

    def described(self) -> dict[str, Any]:
        """What goes beside the choice."""
        train, _, _ = sort_settings(get_method(self.cell.method), self.cell.arguments())
        return {
            "measure": "accuracy" if self.measure in _ACCURACIES else self.measure,
            "seeds": self.seeds,
            "epochs": train.epochs,
            "val_fraction": VAL_FRACTION,
            "cell": self.cell.to_json(),
        }

    def _validated(self, cell: Cell) -> Generator[object, None, float]:
        desk, (splits, shared) = self.bench.desk, self._world(cell)
        teacher = desk.places.teacher_folder(cell.teacher) if cell.teacher else None
        run = Run(
            teacher, cell.student, splits, cell.method, None,
            resume=False, reporter=Reporter(), shared=shared, device=str(desk.device),
            **(once_open(cell.arguments()) | desk.settings),
        )  # fmt: skip
        seconds = yield from run.training()
        result = run.finish(seconds)
        if self.measure in _ACCURACIES:
            return result.accuracy
        if self.measure == "ncm":
            return result.ncm
        return judge_student(run, cell, desk, on_validation=True)[self.measure]

    def _world(self, cell: Cell) -> tuple[Splits, Shared]:
        if cell.world not in self._worlds:
            splits = without_test(cell, self.bench.desk.places)
            self._worlds[cell.world] = (splits, Shared(self.bench.trainings.at_once))
        return self._worlds[cell.world]


def _own_settings(cell: Cell) -> dict[str, Any]:
    """The method's settings in this cell, defaults included; none for what trains nothing."""
    return cell.resolved()["method"] if cell.method in METHODS else {}


def _is_share(method: str, name: str) -> bool:
    """Whether a setting of a method can be at most 1."""
    try:
        get_method(method).settings(**{name: 1.5})
    except UserError:
        return True
    return False


def at_work(settings: dict[str, Any]) -> dict[str, Any]:
    """Without the settings of terms that are switched off."""
    idle = idle_settings(settings)
    return {name: value for name, value in settings.items() if name not in idle}
