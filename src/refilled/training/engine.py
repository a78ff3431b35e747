"""Which way of running epochs a device and a model allow; each falls back by itself and says why."""

import warnings

import torch
from torch import nn

from refilled.data import Batches
from refilled.data.augment import Show, show
from refilled.models import Network
from refilled.training.answers import Teachers
from refilled.training.captured import CapturedEpochs
from refilled.training.compiled import CompiledLoss, compiled_show
from refilled.training.epochs import Epochs, PlainEpochs, Schedule, Snapshot, start_momenta
from refilled.training.progress import Reporter
from refilled.training.settings import TrainSettings
from refilled.training.step import PlainStep

AROUND_PAYS_FROM = 40_000
"""Steps of a stage from which it pays to compile what its loss does around the network: some ten seconds for
each loss, of which a step gives back 0.1 to 0.4 milliseconds on an H200 (results/speed.md)."""


def make_epochs(
    step: PlainStep,
    student: Network,
    batches: Batches,
    settings: TrainSettings,
    teachers: Teachers,
    asking: int,
    reporter: Reporter,
    salt: int = 0,
) -> Epochs:
    """The fastest way to run this stage's epochs, or the plain one where that was asked for.

    Args:
        step: a training step with its optimizer as it should start.
        student: the network in training.
        batches: training images.
        settings: ``step`` and ``compile`` count here.
        teachers: finds the cheapest way to ask the stage's teacher.
        asking: epochs of this training, from now on, that ask it.
        reporter: told when something is not possible.
        salt: of the stage's plans.
    """
    if settings.step == "plain":
        return PlainEpochs(step, batches)
    stage, answers = step.stage, None
    if stage.asks is not None:
        shared = stage.beside is not stage.asks  # else it is a network of this training alone
        answers = teachers.answers(stage.asks, batches, asking, reporter.asking, stage.wanted, shared)
    modules: list[nn.Module] = [student] if stage.beside is None else [student, stage.beside]
    student.train()
    on_gpu = batches.device.type == "cuda"
    showing: Show = compiled_show() if settings.compile and on_gpu else show
    if settings.compile:
        epochs = PlainEpochs(step, batches, answers, showing)
        if not _compile(step, student, batches, epochs, modules, reporter, salt):
            showing = show
    if on_gpu:
        try:
            return CapturedEpochs(step, batches, answers, modules, batches.plan(0, salt), showing)
        except Exception as problem:  # whatever a model does that a graph cannot hold
            if isinstance(problem, torch.cuda.OutOfMemoryError):
                raise
            reporter.line(
                f"stage {stage.name}: this step cannot be captured in a CUDA graph "
                f"({_in_short(problem)}); its kernels are launched one by one, which is slower"
            )
    return PlainEpochs(step, batches, answers, showing)


def _compile(
    step: PlainStep,
    student: Network,
    batches: Batches,
    epochs: PlainEpochs,
    modules: list[nn.Module],
    reporter: Reporter,
    salt: int,
) -> bool:
    """Put a compiled loss into the step, if one step with it works; says whether it does."""
    start_momenta(step)
    snapshot = Snapshot(step, modules)
    reporter.line(f"stage {step.stage.name}: compiling (up to a minute the first time)")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            around = step.stage.epochs * len(batches) >= AROUND_PAYS_FROM
            step.loss = CompiledLoss(step.stage.loss, student, around)
            nothing = [0.0] * len(batches)
            next(epochs.run(batches.plan(0, salt), Schedule(nothing, nothing, (0,))))
        return True
    except Exception as problem:  # no compiler on this machine, or a model that cannot be compiled
        step.loss = step.stage.loss
        reporter.line(
            f"stage {step.stage.name}: the loss cannot be compiled ({_in_short(problem)}); it is run as it is"
        )
        return False
    finally:
        snapshot.restore()


def _in_short(problem: Exception) -> str:
    problem = getattr(problem, "inner_exception", problem)  # the compiler wraps what went wrong
    first = next((line for line in str(problem).splitlines() if line.strip()), "")
    return f"{type(problem).__name__}: {first[:120]}" if first else type(problem).__name__
