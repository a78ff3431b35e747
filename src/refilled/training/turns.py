"""Several trainings in one process, in turns."""

import time
from collections.abc import Callable, Generator, Iterable
from functools import cache
from typing import Any, TypeVar

import torch

T = TypeVar("T")
WAITING = object()
"""What a training, or another job, says at the end of a turn in which it has only waited for another one."""


class Shares:
    """What part of the time was whose, for trainings that take turns: that of a turn is divided among those
    that are in training then."""

    def __init__(self) -> None:
        self.active = 0

    def own_part(
        self, start: Callable[[Callable[[], float]], Generator[Any, None, T]]
    ) -> Generator[None, None, T]:
        """The training that is started with a clock which counts its own part of the time; while it says
        that it is :data:`WAITING` there is none. It keeps its place meanwhile: there are never more
        trainings with networks of their own than run at once."""
        last, own, waits = time.monotonic(), 0.0, False
        steps = start(lambda: own + (0.0 if waits else (time.monotonic() - last) / self.active))
        self.active += 1
        try:
            while True:
                try:
                    told = next(steps)
                except StopIteration as end:
                    result: T = end.value
                    return result
                finally:
                    now = time.monotonic()
                    own, last = own + (0.0 if waits else (now - last) / self.active), now
                if (told is WAITING) != waits:
                    waits = not waits
                    self.active += -1 if waits else 1
                yield
        finally:
            self.active -= not waits
            steps.close()


@cache
def _stream(number: int) -> torch.cuda.Stream:
    """Always the same stream for the same place: there are only so many. The first one's has priority."""
    return torch.cuda.Stream(priority=-1 if number == 0 else 0)


def take_turns(jobs: Iterable[Generator[Any, None, T]], at_once: int) -> list[T]:
    """Run jobs step by step in turns, so many at once; when one ends the next takes its place, and while one
    says that it is :data:`WAITING` the next has a place beside it.

    On a GPU each place has a stream of its own, so that the small kernels of one training fill the gaps of
    the others. The first place, where a job begins that others may wait for, has a stream with priority.
    Each job does exactly what it would do alone.

    Args:
        jobs: generators that stop after each step; each is asked for only when it is its turn to begin.
        at_once: how many run at the same time.

    Returns:
        What each job returned, in their order.
    """
    left, results = enumerate(jobs), dict[int, T]()
    places: dict[int, tuple[int, Generator[Any, None, T]]] = {}
    idle: set[int] = set()  # places whose jobs wait
    has_streams, more = at_once > 1 and torch.cuda.is_available(), True
    if has_streams:
        torch.cuda.synchronize()
    try:
        while more or places:
            for number in range(max(at_once + len(idle), 1 + max(places, default=0))):
                with torch.cuda.stream(_stream(number) if has_streams else None):
                    if more and number not in places and len(places) - len(idle) < at_once:
                        job = next(left, None)
                        more = job is not None
                        if job is not None:
                            places[number] = job
                    if number not in places:
                        continue
                    idle.discard(number)
                    try:
                        if next(places[number][1]) is WAITING:
                            idle.add(number)
                    except StopIteration as end:
                        results[places.pop(number)[0]] = end.value
    finally:
        for _, steps in places.values():
            steps.close()
        if has_streams:
            torch.cuda.synchronize()
    return [results[number] for number in sorted(results)]
