"""Which way of running epochs a device and a model allow; each falls back by itself and says why."""

import warnings

import torch
from torch import Tensor, nn

from refilled.data import Batch, Batches
from refilled.data.augment import Show, show
from refilled.data.source import Resident
from refilled.methods import Stage
from refilled.models import Network
from refilled.training.answers import Teachers
from refilled.training.captured import CapturedEpochs
from refilled.training.compiled import TOGETHER, CompiledLoss, GivenLoss, compiled_show, what_is_asked
from refilled.training.epochs import Answers, Epochs, PlainEpochs, Schedule, Snapshot, start_momenta
from refilled.training.progress import Reporter
from refilled.training.settings import TrainSettings
from refilled.training.step import PlainStep
from refilled.training.team import Member
from refilled.training.teams import JoinedEpochs, Teams

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
    teams: Teams | None = None,
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
        teams: of trainings that make their steps together; None: this one is by itself.
    """
    if settings.step == "plain":
        return PlainEpochs(step, batches)
    stage, answers = step.stage, None
    if stage.asks is not None:
        shared = stage.beside is not stage.asks  # else it is a network of this training alone
        answers = teachers.answers(stage.asks, batches, asking, reporter.asking, stage.wanted, shared)
    modules: list[nn.Module] = [student] if stage.beside is None else [student, stage.beside]
    student.train()

    showing: Show = compiled_show() if settings.compile and batches.device.type == "cuda" else show

    def alone() -> Epochs:
        return _alone(step, student, batches, settings, answers, modules, reporter, salt, showing)

    if teams is None or not settings.compile or not isinstance(batches.source, Resident):
        return alone()
    if teams.problem is not None or not teams.takes(student, step.autocast_dtype):
        return alone()
    if (asked := _asked(step, student, batches, answers, modules, salt)) not in TOGETHER:
        return alone()
    step.loss = GivenLoss(step.loss, student, asked, _is_long(stage, batches))

    def after_all() -> Epochs:
        reporter.line(
            f"stage {stage.name}: steps cannot be made together with others ({teams.problem}); this training "
            f"goes on by itself, which is slower"
        )
        return alone()

    return JoinedEpochs(Member(step, batches, answers, modules, showing, salt), teams, after_all)


def _alone(
    step: PlainStep,
    student: Network,
    batches: Batches,
    settings: TrainSettings,
    answers: Answers | None,
    modules: list[nn.Module],
    reporter: Reporter,
    salt: int,
    showing: Show,
) -> Epochs:
    """The epochs of a training whose steps are its own."""
    stage = step.stage
    if settings.compile:
        epochs = PlainEpochs(step, batches, answers, showing)
        if not _compile(step, student, batches, epochs, modules, reporter, salt):
            showing = show
    if batches.device.type == "cuda":
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
            step.loss = CompiledLoss(step.stage.loss, student, _is_long(step.stage, batches))
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


def _is_long(stage: Stage, batches: Batches) -> bool:
    """Whether it pays to compile what its loss does around the network."""
    return stage.epochs * len(batches) >= AROUND_PAYS_FROM


def _asked(
    step: PlainStep,
    student: Network,
    batches: Batches,
    answers: Answers | None,
    modules: list[nn.Module],
    salt: int,
) -> str | None:
    """What the loss asks of its student, found by a step that leaves no trace; see :func:`what_is_asked`."""
    snapshot, found = Snapshot(step, modules), list[str | None]()
    plan, usual = batches.plan(0, salt), step.loss

    def watched(batch: Batch) -> dict[str, Tensor]:
        asked, losses = what_is_asked(usual, student, batch)
        found.append(asked)
        return losses

    before = _random_state(batches.device)
    step.loss = watched
    try:
        rows, views = plan.rows[0], plan.views[0]
        progress = torch.zeros((), device=batches.device)
        raw = batches.source.take(rows)
        step.values(PlainEpochs(step, batches, answers).batch(raw, rows, views, progress))
    finally:
        step.loss = usual
        snapshot.restore()
    # One that draws random numbers is seeded for each of its steps.
    return found[0] if torch.equal(before, _random_state(batches.device)) else None


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _in_short(problem: Exception) -> str:
    problem = getattr(problem, "inner_exception", problem)  # the compiler wraps what went wrong
    first = next((line for line in str(problem).splitlines() if line.strip()), "")
    return f"{type(problem).__name__}: {first[:120]}" if first else type(problem).__name__
