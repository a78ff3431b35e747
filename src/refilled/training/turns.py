"""Several trainings in one process, in turns."""

import time
from collections.abc import Callable, Generator, Iterable
from functools import cache
from typing import Any, TypeVar

import torch

T = TypeVar("T")
WAITING = object()
"""What a training says at the end of a turn in which it has only waited for another one."""


class Shares:
    """What part of the time was whose, for trainings that take turns: that of a turn is divided among those
    that are in training then."""

    def __init__(self) -> None:
        self.active = 0

    def own_part(
        self, start: Callable[[Callable[[], float]], Generator[Any, None, T]]
    ) -> Generator[None, None, T]:
        """The training that is started with a clock which counts its own part of the time; while it says
        that it is :data:`WAITING` there is none."""
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
    """Run jobs step by step in turns, so many at once; when one ends the next takes its place.

    On a GPU each place has a stream of its own, so that the small kernels of one training fill the gaps of
    the others. The first place, where a job begins that others may wait for, has a stream with priority.
    Each job does exactly what it would do alone.

    Args:
        jobs: generators that stop after each step; each is asked for only when it is its turn to begin.
        at_once: how many run at the same time.

    Returns:
        What each job returned, in their order.
    """
    waiting, results = enumerate(jobs), dict[int, T]()
    places: list[tuple[int, Generator[Any, None, T]] | None] = [None] * at_once
    streams: list[torch.cuda.Stream | None] = [None] * at_once
    if at_once > 1 and torch.cuda.is_available():
        torch.cuda.synchronize()
        streams = [_stream(number) for number in range(at_once)]
    more = True
    try:
        while more or any(place is not None for place in places):
            for number, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    if places[number] is None and more:
                        places[number] = next(waiting, None)
                        more = places[number] is not None
                    place = places[number]
                    if place is None:
                        continue
                    try:
                        next(place[1])
                    except StopIteration as end:
                        results[place[0]] = end.value
                        places[number] = None
    finally:
        for place in places:
            if place is not None:
                place[1].close()
        if at_once > 1 and torch.cuda.is_available():
            torch.cuda.synchronize()
    return [results[number] for number in sorted(results)]
