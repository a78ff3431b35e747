"""Trainings of different size beside each other in one process: how fast is each?

    python benchmarks/pace.py                                     # a large network and four small ones
    python benchmarks/pace.py --trainings wrn-40-2:64 wrn-16-2:16 wrn-16-2:16 --seconds 10

Each is a network and the images of a step. *In step*: each gives the GPU as many steps as it takes in, which
may hold up the process, and so all of them. *At its own pace*: none gives it more than two
(refilled.training.waiting). *First before others*: at its own pace, and the first one's kernels go before.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from functools import cache
from typing import ClassVar

import torch

from command import run
from our_loop import make_stage
from refilled.data import Batches
from refilled.labels import LabelSpace
from refilled.models import load
from refilled.runs.prepare import place
from refilled.training import (
    Reporter,
    TrainSettings,
    make_deterministic,
    pick_device,
    take_turns,
    training,
    turns,
    waiting,
)
from timing import say
from world import CLASSES, LR, SIDE, make_images

STEPS = 60  # of an epoch: few enough for several epochs in some seconds
WAYS = {"in step": (10**9, 0), "at its own pace": (2, 0), "first before others": (2, -1)}
"""How far ahead a training may be, and the priority of the first place."""


class Window:
    """The time in which all are in training: from the last one's first step until it is up and each has had a
    whole epoch in it.

    Args:
        expected: how many there are.
        seconds: how long it is at least.
    """

    def __init__(self, expected: int, seconds: float):
        self.missing = self.lacking = expected
        self.seconds, self.began = seconds, float("inf")

    def join(self) -> None:
        """One more is in training."""
        self.missing -= 1
        if not self.missing:
            self.began = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether all may stop."""
        return not self.lacking and time.monotonic() > self.began + self.seconds


class Speeds(Reporter):
    """Remembers the images per second of epochs that begin and end in the window."""

    said: ClassVar[set[str]] = set()

    def __init__(self, window: Window) -> None:
        self.window, self.last, self.found = window, float("-inf"), list[float]()

    def line(self, text: str) -> None:
        """Say what cannot be captured or compiled, once for all trainings."""
        if "cannot" in text and text not in self.said:
            self.said.add(text)
            say(text)

    def epoch(self, record: dict[str, float]) -> None:
        """Keep the speed."""
        if self.last >= self.window.began:
            self.window.lacking -= not self.found
            self.found.append(record["images_per_second"])
        self.last = time.monotonic()


class Pace:
    """Trainings that are made anew for each way.

    Args:
        trainings: network and batch size of each.
        device: where.
        compile: the networks.
    """

    def __init__(self, trainings: list[tuple[str, int]], device: torch.device, compile: bool):
        self.trainings, self.device, self.compile = trainings, device, compile
        self.classes = LabelSpace(str(label) for label in range(CLASSES))
        largest = max(size for _, size in trainings)
        images, labels = make_images(STEPS * largest)
        self.images, self.labels = images.to(device), labels.to(device)

    def measure(self, which: list[int], way: str, seconds: float) -> list[float]:
        """Images per second of those trainings beside each other: the median of the epochs that lie wholly
        in the time in which all of them are in training."""
        waiting._AHEAD, priority = WAYS[way]
        turns._stream = cache(lambda number: torch.cuda.Stream(priority=0 if number else priority))
        window = Window(len(which), seconds)
        speeds = [Speeds(window) for _ in which]
        jobs = [self._within(window, *self.trainings[one], seen) for one, seen in zip(which, speeds)]
        take_turns(jobs, max(2, len(jobs)))
        return [statistics.median(seen.found) for seen in speeds]

    def _within(self, window: Window, network: str, size: int, seen: Speeds) -> Iterator[None]:
        settings = TrainSettings(batch_size=size, lr=LR, compile=self.compile)
        count = STEPS * size
        batches = Batches(self.images[:count], self.labels[:count], size, "crop-flip")
        student = place(load(network, self.classes, image_size=SIDE), self.device)
        stage = make_stage("alone", student, student, batches, 10**4)
        steps = training([stage], student, batches, settings, reporter=seen)
        next(steps)
        window.join()
        for _ in steps:
            yield
            if window.is_over:
                steps.close()
                return


def parse(text: str) -> tuple[str, int]:
    """``wrn-16-2:256``."""
    network, _, size = text.partition(":")
    return network, int(size)


def main() -> None:
    """Measure, and print a table."""
    usual = ["wrn-40-2:64", *["wrn-16-2:256"] * 4]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trainings", nargs="+", type=parse, default=list(map(parse, usual)))
    parser.add_argument("--seconds", type=float, default=6.0, help="of each way")
    parser.add_argument("--rounds", type=int, default=2, help="of all ways, one after the other")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--compile", action="store_true")
    asked = parser.parse_args()
    make_deterministic(False)
    pace = Pace(asked.trainings, pick_device(asked.device), asked.compile)
    names = [f"{network}:{size}" for network, size in asked.trainings]
    kinds = {name: names.index(name) for name in names}
    alone = {name: pace.measure([place], "in step", asked.seconds)[0] for name, place in kinds.items()}
    say("images per second of each, and in all as parts of what each has alone")
    say("alone: " + ", ".join(f"{name} {rate:,.0f}" for name, rate in alone.items()))
    for number in range(asked.rounds):
        for way in WAYS:
            rates = pace.measure(list(range(len(names))), way, asked.seconds)
            parts = sum(rate / alone[name] for name, rate in zip(names, rates))
            each = ", ".join(f"{name} {rate:,.0f}" for name, rate in zip(names, rates))
            say(f"round {number + 1}, {way}: {each}; {parts:.2f}")


if __name__ == "__main__":
    run(main)
