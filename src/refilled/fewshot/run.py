"""Judge a method on many tasks: mean accuracy and its 95 % confidence interval."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from refilled.checks import check_number
from refilled.data import Progress
from refilled.evaluation import half_interval
from refilled.fewshot.episodes import Episodes, Tasks

TaskMethod = Callable[[Tasks], Tensor]
"""Learns T tasks from their support and predicts classes int64 [T, ways * queries] of their queries."""
AT_ONCE_ON_A_GPU, AT_ONCE_ON_A_CPU = 256, 8
"""Tasks that a method is given together. Networks of many tasks fill a GPU; a CPU gains nothing."""


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
    at_once: int | None = None,
    progress: Progress | None = None,
) -> Accuracy:
    """Accuracy of a method over the first tasks of the episodes.

    Args:
        method: one of this room's, or any function from tasks to predicted classes.
        episodes: what tasks are drawn from; the same for every method that is to be compared.
        tasks: how many.
        at_once: how many the method is given together; None: as many as suit the device. It changes speed
            and memory, not the tasks.
        progress: called with (done, total).
    """
    check_number("tasks", tasks, least=1)
    right: list[int] = []
    for some in right_answers(method, episodes, range(tasks), at_once):
        right += some
        if progress is not None:
            progress(len(right), tasks)
    asked = episodes.ways * episodes.queries
    values = [count / asked for count in right]
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


def right_answers(
    method: TaskMethod, episodes: Episodes, numbers: range, at_once: int | None = None
) -> Iterator[list[int]]:
    """How many queries of each task are classified rightly, for some tasks after the other.

    Args:
        method: see :func:`run_tasks`.
        episodes: what tasks are drawn from.
        numbers: which tasks, without a step.
        at_once: how many together, see :func:`run_tasks`. Where they do not fit into a GPU's memory, half
            as many are tried.
    """
    check_number("at_once", at_once, least=1)
    size = at_once or (AT_ONCE_ON_A_CPU if episodes.device.type == "cpu" else AT_ONCE_ON_A_GPU)
    first = numbers.start
    while first < numbers.stop:
        tasks = episodes.draw(first, min(size, numbers.stop - first))
        try:
            right = (method(tasks) == tasks.query_labels).sum(dim=1).tolist()
        except torch.OutOfMemoryError:
            if len(tasks) == 1:
                raise
            size = len(tasks) // 2
            continue
        first += len(tasks)
        yield right
