"""Judge a method on many tasks: mean accuracy and its 95 % confidence interval."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from refilled.checks import check_number
from refilled.data import Progress
from refilled.evaluation import half_interval
from refilled.fewshot.episodes import Episodes, Tasks

TaskMethod = Callable[[Tasks], Tensor]
"""Learns T tasks from their support and predicts classes int64 [T, ways * queries] of their queries."""


@dataclass(frozen=True)
class Accuracy:
    """Of a method over tasks, each with the same weight."""

    mean: float
    half_interval: float
    """Half the width of the mean's 95 % confidence interval; NaN for one task."""
    tasks: int
    ways: int
    shots: int
    queries: int
    seed: int
    per_task: tuple[float, ...] = field(repr=False)
    """In the order of the tasks' numbers, so that two methods can be compared task by task."""


def run_tasks(
    method: TaskMethod,
    episodes: Episodes,
    tasks: int = 10_000,
    *,
    at_once: int = 64,
    progress: Progress | None = None,
) -> Accuracy:
    """Accuracy of a method over the first tasks of the episodes.

    Args:
        method: one of this room's, or any function from tasks to predicted classes.
        episodes: what tasks are drawn from; the same for every method that is to be compared.
        tasks: how many.
        at_once: how many the method is given together; it changes speed and memory, not the tasks. On a
            CPU, methods that train networks gain nothing from many, and need more memory.
        progress: called with (done, total).
    """
    check_number("tasks", tasks, least=1)
    check_number("at_once", at_once, least=1)
    right: list[Tensor] = []
    for group in episodes.groups(tasks, at_once):
        predicted = method(group)
        right.append((predicted == group.query_labels).double().mean(dim=1).cpu())
        if progress is not None:
            progress(group.numbers.stop, tasks)
    values = torch.cat(right).tolist()
    return Accuracy(
        mean=sum(values) / len(values),
        half_interval=half_interval(values) if len(values) > 1 else float("nan"),
        tasks=tasks,
        ways=episodes.ways,
        shots=episodes.shots,
        queries=episodes.queries,
        seed=episodes.seed,
        per_task=tuple(values),
    )
