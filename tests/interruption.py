"""A training that is cut off where a test says."""

from refilled.training import Reporter


class Crash(Exception):
    """What stops it."""


class CrashAt(Reporter):
    """Stops in the second step of an epoch of a stage, by its name, before the epoch's checkpoint."""

    def __init__(self, stage: str, epoch: int):
        self.where, self.stage, self.done = (stage, epoch), "", 0

    def start(self, index, stages, stage, done, steps):
        self.stage, self.done = stage.name, done

    def epoch(self, record):
        self.done = record["epoch"]

    def step(self, number, loss, lr):
        if (self.stage, self.done) == self.where and number == 2:
            raise Crash
