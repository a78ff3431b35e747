"""Our training, driven step by step through the code that ``refilled.distill`` runs, for ``training.py``."""

import time
from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor

from refilled.data import Batches
from refilled.methods import Stage, get_method
from refilled.models import Network
from refilled.training import PlainStep, Reporter, Teachers, Training, TrainSettings, engine
from refilled.training.captured import CapturedEpochs
from refilled.training.engine import make_epochs
from refilled.training.epochs import Epochs, Schedule

STAGES = {"alone": ("student", 0), "1": ("refilled-two-stages", 0), "2": ("refilled-two-stages", 1)}
"""Method and number of the stage that is measured under each name."""


def make_stage(name: str, teacher: Network, student: Network, batches: Batches, epochs: int) -> Stage:
    """A stage as its method makes it, with the method's default settings."""
    method, number = STAGES[name]
    chosen = get_method(method)
    return chosen.stages(teacher, student, batches, chosen.settings(), epochs)[number]


class OurLoop:
    """Trains a student through one stage, a part of an epoch at a time.

    Args:
        student: on the device.
        stage: of :func:`make_stage`.
        batches: training images.
        settings: ``step`` and ``compile`` decide the way.
        teachers: what is known of the teacher.
        asking: epochs that would ask it, by which it is decided whether to look its answers up.
        steps: of one run.
        lr: learning rate.
        reporter: told when something is not possible.
    """

    epochs: Epochs

    def __init__(
        self,
        student: Network,
        stage: Stage,
        batches: Batches,
        settings: TrainSettings,
        teachers: Teachers,
        asking: int,
        steps: int,
        lr: float,
        reporter: Reporter,
    ):
        self.student, self.stage, self.batches, self.settings = student, stage, batches, settings
        self.teachers, self.asking, self.count, self.lr = teachers, asking, steps, lr
        self.reporter = reporter
        self.number = 1000 * settings.seed  # seeds share the images, and their draws differ

    def build(self) -> float:
        """Make all that happens before the first step (again); returns the seconds that it took."""
        if hasattr(self, "epochs"):
            del self.epochs  # its graph holds memory that the next one would count
        start = _now(self.batches.device)
        settings, dtype = self.settings, self.settings.autocast_dtype(self.batches.device)
        step = PlainStep(self.stage, settings.momentum, settings.weight_decay, dtype)
        engine.AROUND_PAYS_FROM = 0  # as in a long run
        self.epochs = make_epochs(
            step, self.student, self.batches, settings, self.teachers, self.asking, self.reporter
        )
        if settings.compile and step.loss is self.stage.loss:
            raise RuntimeError("the loss was not compiled")
        return _now(self.batches.device) - start

    @property
    def captured(self) -> bool:
        """Whether steps are replays of a CUDA graph."""
        return isinstance(self.epochs, CapturedEpochs)

    def steps(self) -> Iterator[Tensor]:
        """The first steps of a new epoch, its draws included; yields each one's losses."""
        self.student.train()
        plan = self.batches.plan(self.number)
        schedule = Schedule([self.lr] * len(plan), [0.0] * len(plan), (self.settings.seed, 0, self.number))
        self.number += 1
        # Taking the first few from the generator leaves the plan whole: a graph has room for just that many.
        yield from islice(self.epochs.run(plan, schedule), self.count)

    def run(self, most: int | None = None) -> Tensor:
        """Train for the steps of one run, or fewer; returns the last loss, still on the device."""
        for losses in islice(self.steps(), most):  # noqa: B007
            pass
        return losses.sum()

    def turns(self) -> Training:
        """One run for :func:`refilled.training.take_turns`."""
        for _ in self.steps():
            yield
        return 0.0


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
