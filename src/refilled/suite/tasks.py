"""Run cells that are many tasks: the networks' world is made once, then tasks follow each other."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from refilled.data import Splits, open_data
from refilled.fewshot import Episodes, Pool, World, get_method, load_pool, make_method, right_answers
from refilled.labels import LabelSpace
from refilled.methods import get_method as get_training
from refilled.models import Network
from refilled.runs.prepare import make_teacher, read_splits
from refilled.runs.settings import sort_settings
from refilled.suite.cell import TeacherCell
from refilled.suite.runner import Desk, Job
from refilled.suite.task_cell import TaskCell

RECORD_SECONDS = 60.0
"""Most time between two parts in the ledger: what an interruption can cost."""


class TaskRuns:
    """Runs cells of tasks, one after the other: the tasks of a cell fill the device already.

    Args:
        desk: data, teachers and device; ``together`` is how many tasks are learnt at the same time.
    """

    def __init__(self, desk: Desk):
        self.desk, self.at_once = desk, 1
        self._images: dict[tuple[Any, ...], Pool] = {}
        self._worlds: dict[tuple[Any, ...], World] = {}

    def check(self, cells: Sequence[TaskCell]) -> None:
        """Refuse tasks that cannot be drawn, by the labels alone: no image is decoded."""
        labels: dict[Any, tuple[Tensor, LabelSpace]] = {}
        for cell in cells:
            for source, queries in self._drawn_from(cell).items():
                if source not in labels:
                    parts = self._parts(*source)
                    labels[source] = torch.cat([part.labels for part in parts]), parts[0].classes
                _episodes(cell, *labels[source], queries)

    def run(self, cell: TaskCell, before: dict[str, Any] | None = None) -> Job:
        """Tasks that are not known yet; a record for each minute or so, and one for the rest."""
        started = time.perf_counter()
        world = self._world(cell)
        episodes = _episodes(cell, world.pool.labels, world.pool.classes, cell.queries)
        method = make_method(cell.method, world, episodes, **dict(cell.settings))
        done = first = before["tasks"] if before is not None else 0
        computing = time.perf_counter()
        right: list[int] = []
        for some in right_answers(method, episodes, range(done, cell.tasks), self.desk.together):
            right, done, now = right + some, done + len(some), time.perf_counter()
            self.desk.reporter.loading(done, cell.tasks, f"{cell.method}, {cell.shots}-shot tasks")
            if now - started < RECORD_SECONDS and done < cell.tasks:
                yield None
                continue
            yield cell.part(first, right, now - started, len(right) / (now - computing))
            first, right = done, []
            started = computing = time.perf_counter()

    def _world(self, cell: TaskCell) -> World:
        if cell.world not in self._worlds:
            self._worlds = {}  # the one before is done, and what its teacher said of every view is large
            network, asked = self._network(cell.network), cell.teacher or cell.network
            size = network.preprocess.size
            self._worlds[cell.world] = World(
                pool=self._pool(cell.data, cell.classes, size),
                network=network,
                teacher=network if asked == cell.network else self._network(asked),
                seen=partial(self._pool, cell.network, None, size),
                augment=cell.augment,
                view_count=cell.views,
                seed=cell.seed,
                progress=self._training,
            )
        return self._worlds[cell.world]

    def _training(self, done: int, total: int) -> None:
        self.desk.reporter.loading(done, total, "training on the seen classes")

    def _network(self, teacher: TeacherCell) -> Network:
        return make_teacher(self.desk.places.teacher_folder(teacher), self.desk.device)

    def _drawn_from(self, cell: TaskCell) -> dict[tuple[Any, ...], int]:
        """Where its tasks come from, with how many queries; some methods need tasks of seen classes too."""
        found: dict[tuple[Any, ...], int] = {(cell.data, cell.classes): cell.queries}
        if get_method(cell.method).learns_to_learn:
            found[cell.network, None] = cell.resolved()["queries"]
        return found

    def _parts(self, source: str | TeacherCell, classes: str | None) -> list[Any]:
        """Sets of images: all of some classes, or those that a network was trained on."""
        if isinstance(source, TeacherCell):
            return [self._trained_on(source).train]
        whole = open_data(self.desk.places.data_spec(source), classes=classes, val_fraction=0.0)
        return [part for part in (whole.train, whole.val, whole.test) if len(part)]

    def _trained_on(self, teacher: TeacherCell) -> Splits:
        train, data, _ = sort_settings(get_training(teacher.method), teacher.as_cell().arguments())
        return read_splits(self.desk.places.data_spec(teacher.data), data, train.seed)

    def _pool(self, source: str | TeacherCell, classes: str | None, size: int | None) -> Pool:
        """Images on the device, decoded once."""
        key = (source, classes, size)
        if key not in self._images:
            parts = [
                load_pool(part, size, self.desk.device, self.desk.reporter.loading)
                for part in self._parts(source, classes)
            ]
            images, labels = (torch.cat([getattr(p, name) for p in parts]) for name in ("images", "labels"))
            self._images[key] = Pool(images, labels, parts[0].classes)
        return self._images[key]


def _episodes(cell: TaskCell, labels: Tensor, classes: LabelSpace, queries: int) -> Episodes:
    return Episodes(labels, cell.shots, ways=cell.ways, queries=queries, seed=cell.seed, classes=classes)
