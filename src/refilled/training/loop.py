"""The one training loop. It knows stages, batches and checkpoints, and no method by name."""

import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from refilled.data import Batches
from refilled.errors import UserError
from refilled.methods import Stage
from refilled.models import Network
from refilled.training.answers import Teachers
from refilled.training.beginnings import Beginning, Beginnings
from refilled.training.checkpoint import Checkpoint, Position, checkpoint_of, save_checkpoint
from refilled.training.engine import make_epochs
from refilled.training.epochs import Epochs, Schedule
from refilled.training.metrics import METRICS, MetricsLog
from refilled.training.progress import Reporter
from refilled.training.settings import TrainSettings
from refilled.training.step import PlainStep
from refilled.training.turns import take_turns
from refilled.training.waiting import StepsAhead, brought

_LOOK_EVERY = 50
"""Steps between two looks at the losses on a GPU, where an epoch has more than twice as many; a shorter one
is looked at when it is over. For each look a training waits for the device."""

Validate = Callable[[Stage], dict[str, float]]
Training = Generator[object, None, float]
"""A training that stops for a moment after each step, so that several can take turns."""


class LossIsNotFinite(UserError):
    """A loss term became NaN or infinite."""


def train(
    stages: list[Stage],
    student: Network,
    batches: Batches,
    settings: TrainSettings,
    *,
    plan: str = "",
    folder: Path | None = None,
    resume: bool = False,
    validate: Validate | None = None,
    reporter: Reporter | None = None,
    teachers: Teachers | None = None,
) -> float:
    """Run the stages one after another, from the start or from a checkpoint.

    Args:
        stages: what to train; each has an optimizer and a schedule of its own.
        student: the network whose weights are saved and restored.
        batches: training images, on the device.
        settings: learning rate and the rest.
        plan: describes the run in words; a checkpoint with other words is not continued.
        folder: run folder for ``metrics.jsonl`` and ``checkpoint/``; None: nothing is written.
        resume: go on from the folder's checkpoint, where there is one.
        validate: measures the student after some epochs.
        reporter: shows progress.
        teachers: what several trainings know of their teacher; None: this one is by itself.

    Returns:
        Seconds of training, those before an interruption included.
    """
    steps = training(
        stages, student, batches, settings, plan=plan, folder=folder, resume=resume, validate=validate,
        reporter=reporter, teachers=teachers,
    )  # fmt: skip
    return take_turns([steps], at_once=1)[0]


def training(
    stages: list[Stage],
    student: Network,
    batches: Batches,
    settings: TrainSettings,
    *,
    plan: str = "",
    folder: Path | None = None,
    resume: bool = False,
    validate: Validate | None = None,
    reporter: Reporter | None = None,
    teachers: Teachers | None = None,
    beginnings: Beginnings | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Training:
    """The training of :func:`train`, for :func:`take_turns`: nothing happens until it is run.

    Stages that another training of ``beginnings`` begins with too are trained once for both. The clock says
    what its seconds are; those of stages that are taken over count as its own.
    """
    reporter = reporter or Reporter()
    path = checkpoint_of(folder) if folder is not None else None
    log = MetricsLog(folder / METRICS if folder is not None else None)
    beginning = Beginning(beginnings, student, stages, batches, settings)
    checkpoint = None
    if resume and path is not None and path.exists():
        checkpoint = Checkpoint(path, plan)
        checkpoint.restore_student(student)
    position = checkpoint.position if checkpoint else Position()
    if checkpoint is not None and (beside := stages[position.stage].beside) is not None:
        checkpoint.restore_beside(beside)  # of a stage that is over too: the next may go on with it
    if resume:
        log.rewind(position.stage, position.epoch)
    if checkpoint is not None:
        name = stages[position.stage].name
        reporter.line(f"going on after epoch {position.epoch} of stage {name}")
    began = clock() - position.seconds
    saved_at = -float("inf")  # the first epoch is kept at once, whatever happens then
    autocast_dtype = settings.autocast_dtype(batches.device)
    teachers = teachers or Teachers(autocast_dtype=autocast_dtype, compile=settings.compile)

    def write_down(record: dict[str, Any], stage: Stage, step: PlainStep) -> None:
        """An epoch is over; a checkpoint is kept where it is time for one."""
        nonlocal saved_at
        log.append(record)
        reporter.epoch(record)
        epoch = record["epoch"]
        if epoch == stage.epochs or time.monotonic() - saved_at >= settings.checkpoint_seconds:
            _check_weights(stage, epoch)
            if path is not None:
                reached = Position(record["stage_index"], epoch, clock() - began)
                save_checkpoint(path, student, step.optimizer, reached, plan, stage.beside)
            saved_at = time.monotonic()

    with beginning:
        for index, stage in enumerate(stages):
            if index < position.stage or (index == position.stage and position.epoch >= stage.epochs):
                continue
            done = position.epoch if index == position.stage else 0
            modules = [student] if stage.beside is None else [student, stage.beside]
            if done == 0 and (there := (yield from beginning.reached(index))) is not None:
                there.put_into(modules)
                for record in there.records:
                    log.append(record)
                began = clock() - there.seconds
                continue
            if done == 0 and stage.begin is not None:
                stage.begin()
            step = PlainStep(stage, settings.momentum, settings.weight_decay, autocast_dtype)
            if checkpoint is not None and done > 0:
                checkpoint.restore_optimizer(step.optimizer)
            asking = sum(other.epochs for other in stages[index:] if other.asks_like(stage)) - done
            epochs = make_epochs(step, student, batches, settings, teachers, asking, reporter, index)
            every = settings.validate_every or max(1, stage.epochs // 10)
            reporter.start(index, len(stages), stage, done, len(batches))
            records = []
            try:
                for epoch in range(done, stage.epochs):
                    record = {"stage": stage.name, "stage_index": index, "epoch": epoch + 1}
                    record |= yield from _one_epoch(
                        epochs, student, batches, settings, index, epoch, reporter
                    )
                    last = epoch + 1 == stage.epochs
                    if validate is not None and (last or (epoch + 1) % every == 0):
                        record |= {f"val/{name}": value for name, value in validate(stage).items()}
                    write_down(record, stage, step)
                    records.append(record)
            except LossIsNotFinite as problem:
                raise _with_advice(problem, path) from None
            finally:
                reporter.finish()
            beginning.keep(modules, records, clock() - began)
    student.eval()
    return clock() - began


def _one_epoch(
    epochs: Epochs,
    student: Network,
    batches: Batches,
    settings: TrainSettings,
    stage_index: int,
    epoch: int,
    reporter: Reporter,
) -> Generator[None, None, dict[str, float]]:
    """Train for one epoch; returns the mean of each loss term, the last learning rate and the speed."""
    student.train()
    began = time.monotonic()
    stage = epochs.step.stage
    plan = batches.plan(epoch, salt=stage_index, group=stage.group)
    steps = len(plan)
    progress = [(epoch * steps + number) / (stage.epochs * steps) for number in range(steps)]
    rates = [settings.learning_rate(share) for share in progress]
    schedule = Schedule(rates, progress, (settings.seed, stage_index, epoch))
    unseen: list[Tensor] = []
    looked_at: list[Tensor] = []
    look_every = 1 if batches.device.type != "cuda" else _LOOK_EVERY if steps > 2 * _LOOK_EVERY else steps
    ahead = StepsAhead.on(batches.device)
    for number, losses in enumerate(epochs.run(plan, schedule)):
        unseen.append(losses)
        ahead.given()
        yield
        yield from ahead.room()
        if (number + 1) % look_every == 0 or number + 1 == steps:
            recent = yield from brought(torch.stack(unseen))
            _check_finite(recent, epochs.step, epoch, number)
            reporter.step(number + 1, float(recent[-1].sum()), rates[number])
            looked_at.append(recent)
            unseen = []
    means = torch.cat(looked_at).mean(dim=0).tolist()
    seconds = time.monotonic() - began
    return {
        "lr": rates[-1],
        "images_per_second": round(batches.asked / seconds, 1),
        **{f"loss/{name}": value for name, value in zip(epochs.step.terms, means)},
    }


def _with_advice(problem: LossIsNotFinite, path: Path | None) -> LossIsNotFinite:
    """The same, with what is left and what to do."""
    kept = f"; the last good checkpoint is kept: {path}" if path is not None and path.exists() else ""
    return LossIsNotFinite(f"{problem}{kept}. Try a smaller --lr")


def _check_weights(stage: Stage, epoch: int) -> None:
    """The last update of an epoch may have spoilt the weights though its loss was still a number."""
    if not all(bool(torch.isfinite(parameter).all()) for parameter in stage.parameters):
        raise LossIsNotFinite(f"weights are no longer finite after epoch {epoch} of stage {stage.name!r}")


def _check_finite(recent: Tensor, step: PlainStep, epoch: int, last: int) -> None:
    """Stop at the first loss that is no number; what the last checkpoint holds is still good."""
    bad = ~torch.isfinite(recent)
    if not bad.any():
        return
    row = int(bad.any(dim=1).nonzero()[0])
    term = step.terms[int(bad[row].nonzero()[0])]
    number = last - len(recent) + 1 + row
    raise LossIsNotFinite(
        f"loss term {term!r} became {recent[row][bad[row]][0].item()} in stage {step.stage.name!r}, epoch "
        f"{epoch + 1}, step {number + 1}"
    )
