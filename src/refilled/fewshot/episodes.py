"""Few-shot tasks: some classes, a few images of each to learn from (support), others to be asked (queries).

Vinyals et al., 2016 (https://arxiv.org/abs/1606.04080). A task is a function of (seed, its number) and of
the images there are, so that every method is judged on the same ones. Tasks of one seed and number have
the same classes and queries whatever the shots, and fewer shots are among more.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from refilled.checks import check_number
from refilled.data.randomness import mixed_seed, seeded_generator
from refilled.errors import UserError
from refilled.labels import LabelSpace

_OF_TASKS = mixed_seed(0x7461736B)  # apart from all other draws of a seed


@dataclass(frozen=True)
class Tasks:
    """T tasks of one shape; rows are those of the pool that they were drawn from."""

    rows: Tensor
    """int64 [T, ways, shots + queries], of each class the support first"""
    shots: int
    seed: int
    numbers: range
    """Which tasks of the seed they are."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def ways(self) -> int:
        """Classes of a task."""
        return self.rows.shape[1]

    @property
    def support(self) -> Tensor:
        """Rows [T, ways * shots], class by class."""
        return self.rows[:, :, : self.shots].flatten(1)

    @property
    def queries(self) -> Tensor:
        """Rows [T, ways * queries], class by class."""
        return self.rows[:, :, self.shots :].flatten(1)

    @property
    def support_labels(self) -> Tensor:
        """int64 [ways * shots], from 0 to ways - 1, the same for every task."""
        return torch.arange(self.ways, device=self.rows.device).repeat_interleave(self.shots)

    @property
    def query_labels(self) -> Tensor:
        """int64 [ways * queries], the same for every task."""
        queries = self.rows.shape[2] - self.shots
        return torch.arange(self.ways, device=self.rows.device).repeat_interleave(queries)


class Episodes:
    """Draws tasks from labelled images; what cannot be drawn is refused at once.

    Args:
        labels: int64 [N] of the images of the pool.
        shots: images of a class to learn from.
        ways: classes of a task.
        queries: images of a class to be asked.
        seed: another one, other tasks.
        classes: names for messages, and the classes that may be drawn; None: those that occur.
    """

    def __init__(
        self,
        labels: Tensor,
        shots: int,
        *,
        ways: int = 5,
        queries: int = 15,
        seed: int = 0,
        classes: LabelSpace | None = None,
    ):
        for name, value in (("shots", shots), ("ways", ways), ("queries", queries)):
            check_number(name, value, least=1)
        self.shots, self.ways, self.queries, self.seed = shots, ways, queries, seed
        self.device = labels.device
        labels = labels.cpu()
        known = range(len(classes)) if classes is not None else torch.unique(labels).tolist()
        self._rows = [torch.nonzero(labels == label).squeeze(1) for label in known]
        if len(self._rows) < ways:
            raise UserError(f"there are {len(self._rows)} classes, too few for tasks of {ways} ways")
        needed = shots + queries
        short = [place for place, rows in enumerate(self._rows) if len(rows) < needed]
        if short:
            first = short[0]
            name = repr(classes[first]) if classes is not None else str(known[first])
            more = f" ({len(short) - 1} more classes have too few)" if len(short) > 1 else ""
            raise UserError(
                f"class {name} has {len(self._rows[first])} images; {shots} shots and {queries} queries "
                f"need {needed}{more}"
            )

    def draw(self, first: int, count: int) -> Tasks:
        """Tasks number first ... first + count - 1, on the device of the labels."""
        check_number("count", count, least=1)
        numbers = range(first, first + count)
        rows = torch.stack([self._task(number) for number in numbers])
        return Tasks(rows.to(self.device), self.shots, self.seed, numbers)

    def groups(self, count: int, at_once: int) -> Iterator[Tasks]:
        """The first ``count`` tasks, ``at_once`` at a time; the last group may be smaller."""
        for first in range(0, count, at_once):
            yield self.draw(first, min(at_once, count - first))

    def _task(self, number: int) -> Tensor:
        """Rows [ways, shots + queries]."""
        generator = seeded_generator(self.seed, _OF_TASKS, number)
        chosen = torch.randperm(len(self._rows), generator=generator)[: self.ways]
        drawn = []
        for rows in (self._rows[place] for place in chosen.tolist()):
            shuffled = rows[torch.randperm(len(rows), generator=generator)]
            queries = shuffled[: self.queries]  # drawn first: the same ones for any number of shots
            drawn.append(torch.cat([shuffled[self.queries : self.queries + self.shots], queries]))
        return torch.stack(drawn)
