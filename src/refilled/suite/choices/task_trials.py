"""Trials of few-shot methods: tasks of the validation classes, never of those that are judged.

Every trial has the same tasks, so that two of them differ by their settings alone.
"""

from typing import Any

from refilled.errors import UserError
from refilled.suite.choices import training_trials
from refilled.suite.choices.search import Range, space_around
from refilled.suite.judging import OverTasks
from refilled.suite.run import Bench
from refilled.suite.task_cell import TaskCell
from refilled.training import LossIsNotFinite

AROUND: dict[str, tuple[float, float]] = {
    **training_trials.AROUND,
    "lr": (1 / 10, 10),
    "head_lr": (1 / 10, 10),
    "steps": (1 / 4, 4),
    "penalty": (1 / 100, 100),
    "temperature": (1 / 8, 8),
    "inner_lr": (1 / 5, 5),
    "task_lr": (1 / 10, 10),
}
"""Searched between these multiples of a setting's own value."""


class TaskTrials:
    """Tries settings of one cell.

    Args:
        cell: whose settings; it also says networks, classes for validation and the shape of tasks.
        bench: says where and with what; the networks are there.
        judge: tasks of a trial.
        measure: what is made large, of the validation tasks.
        epochs: must be None, tasks have none.
    """

    def __init__(
        self, cell: TaskCell, bench: Bench, judge: OverTasks, measure: str, epochs: int | None = None
    ):
        if epochs is not None:
            raise UserError("--tune-epochs is for trainings; tasks have steps, which are searched")
        self.cell = cell.on_validation().with_tasks(judge.tasks)
        self.bench, self.measure = bench, measure
        self.space, self.own = self.space_of(cell), cell.resolved()
        self.name = f"{cell.data}-{cell.network.network}-{cell.method}-{cell.shots}"

    @staticmethod
    def space_of(cell: TaskCell) -> dict[str, Range]:
        """What is searched of a cell."""
        return space_around(training_trials.at_work(cell.resolved()), AROUND, training_trials.BETWEEN)

    def identity(self) -> list[Any]:
        """All that makes another search of it, but for the space."""
        return [self.cell.key, self.measure, self.cell.tasks]

    def value(self, settings: dict[str, float]) -> dict[str, Any]:
        """Mean over the tasks."""
        tried = self.cell.with_settings(**settings)
        try:
            parts = [part for part in self.bench.tasks.run(tried) if part is not None]
        except LossIsNotFinite as problem:  # of a network of the seen classes
            return {"value": 0.0, "problem": str(problem)}
        record = tried.merged(parts)
        assert record is not None, "a run ends with what it measured"
        return {"value": record[self.measure], "half_interval": record["half_interval"]}

    def described(self) -> dict[str, Any]:
        """What goes beside the choice."""
        return {"measure": "accuracy", "tasks": self.cell.tasks, "cell": self.cell.to_json()}
