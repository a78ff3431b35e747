"""Waiting for a GPU without holding up the trainings that take turns in this process."""

import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Protocol

import torch
from torch import Tensor

_AHEAD = 2
"""Steps that a training has at most on a GPU: one that runs, and one that follows without a gap."""


class Mark(Protocol):
    """A place in what a device has to do."""

    def query(self) -> bool:
        """Whether the device has come by."""


class StepsAhead:
    """The steps that a training has given to a device and that are not done yet.

    A GPU takes in only so many kernels; who gives it more would be held up until some are done, and with it
    all trainings of this process, each at the pace of all.

    Args:
        mark: puts a mark behind what the device has to do; None: steps are done when they are given.
    """

    def __init__(self, mark: Callable[[], Mark] | None):
        self._mark, self._marks = mark, deque[Mark]()

    @classmethod
    def on(cls, device: torch.device) -> "StepsAhead":
        """Those of a device, on the stream that is current whenever one is given."""
        if device.type != "cuda":
            return cls(None)
        return cls(lambda: torch.cuda.current_stream(device).record_event())

    def given(self) -> None:
        """There is one more."""
        if self._mark is not None:
            self._marks.append(self._mark())

    def room(self) -> Generator[None, None, None]:
        """Over when the device can be given another; until then others have their turns."""
        while len(self._marks) >= _AHEAD:
            if self._marks[0].query():
                self._marks.popleft()
            else:
                yield from _a_moment()


def brought(values: Tensor) -> Generator[None, None, Tensor]:
    """The same values on the host. Until a GPU has computed them, others have their turns."""
    if values.device.type != "cuda":
        return values.cpu()
    here = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    here.copy_(values, non_blocking=True)
    arrived = torch.cuda.current_stream(values.device).record_event()
    while not arrived.query():
        yield from _a_moment()
    return here


def _a_moment() -> Generator[None, None, None]:
    time.sleep(0)  # threads of this process that decode images need a chance, too
    yield
