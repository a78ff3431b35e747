"""The one training loop. It knows stages, batches and checkpoints, and no method by name."""

import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from refilled.data import Batches
from refilled.data.randomness import mixed_seed
from refilled.errors import UserError
from refilled.methods import Stage
from refilled.models import Network
from refilled.training.checkpoint import Checkpoint, Position, save_checkpoint
from refilled.training.metrics import MetricsLog
from refilled.training.progress import Reporter
from refilled.training.settings import TrainSettings
from refilled.training.step import PlainStep

_CHECK_EVERY = 50  # steps between two looks at the losses on a GPU: each look waits for it

Validate = Callable[[Stage], dict[str, float]]


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

    Returns:
        Seconds of training, those before an interruption included.
    """
    reporter = reporter or Reporter()
    path = folder / "checkpoint" / "last.safetensors" if folder is not None else None
    log = MetricsLog(folder / "metrics.jsonl" if folder is not None else None)
    checkpoint = None
    if resume and path is not None and path.exists():
        checkpoint = Checkpoint(path, plan)
        checkpoint.restore_student(student)
    position = checkpoint.position if checkpoint else Position()
    if resume:
        log.rewind(position.stage, position.epoch)
    began = time.monotonic() - position.seconds
    saved_at = time.monotonic()

    for index, stage in enumerate(stages):
        if index < position.stage or (index == position.stage and position.epoch >= stage.epochs):
            continue
        done = position.epoch if index == position.stage else 0
        step = PlainStep(
            stage, settings.momentum, settings.weight_decay, settings.autocast_dtype(batches.labels.device)
        )
        if checkpoint is not None and done > 0:
            checkpoint.restore_optimizer(step.optimizer)
        every = settings.validate_every or max(1, stage.epochs // 10)
        reporter.start(index, len(stages), stage, done, len(batches))
        try:
            for epoch in range(done, stage.epochs):
                record = {"stage": stage.name, "stage_index": index, "epoch": epoch + 1}
                record |= _one_epoch(step, student, batches, settings, index, epoch, reporter)
                last = epoch + 1 == stage.epochs
                if validate is not None and (last or (epoch + 1) % every == 0):
                    record |= {f"val/{name}": value for name, value in validate(stage).items()}
                log.append(record)
                reporter.epoch(record)
                now = time.monotonic()
                if last or now - saved_at >= settings.checkpoint_seconds:
                    _check_weights(stage, epoch)
                    if path is not None:
                        reached = Position(index, epoch + 1, now - began)
                        save_checkpoint(path, student, step.optimizer, reached, plan)
                    saved_at = time.monotonic()
        except LossIsNotFinite as problem:
            kept = f"; the last good checkpoint is kept: {path}" if path is not None and path.exists() else ""
            raise LossIsNotFinite(f"{problem}{kept}. Try a smaller --lr") from None
        finally:
            reporter.finish()
    student.eval()
    return time.monotonic() - began


def _one_epoch(
    step: PlainStep,
    student: Network,
    batches: Batches,
    settings: TrainSettings,
    stage_index: int,
    epoch: int,
    reporter: Reporter,
) -> dict[str, float]:
    """Train for one epoch; returns the mean of each loss term, the last learning rate and the speed."""
    # Dropout draws from the global generator: tied to the epoch, so that a resumed run draws the same.
    torch.manual_seed(mixed_seed(settings.seed, stage_index, epoch))
    student.train()
    began = time.monotonic()
    steps, history, lr = len(batches), [], settings.lr
    look_every = _CHECK_EVERY if batches.labels.is_cuda else 1
    for number, batch in enumerate(batches.epoch(epoch, salt=stage_index)):
        lr = settings.learning_rate((epoch * steps + number) / (step.stage.epochs * steps))
        history.append(step(batch, lr))
        if (number + 1) % look_every == 0 or number + 1 == steps:
            recent = torch.stack(history[-(number % look_every + 1) :]).cpu()
            _check_finite(recent, step, epoch, number)
            reporter.step(number + 1, float(recent[-1].sum()), lr)
    means = torch.stack(history).mean(dim=0).tolist()
    seconds = time.monotonic() - began
    return {
        "lr": lr,
        "images_per_second": round(steps * batches.batch_size / seconds, 1),
        **{f"loss/{name}": value for name, value in zip(step.terms, means)},
    }


def _check_weights(stage: Stage, epoch: int) -> None:
    """The last update of an epoch may have spoilt the weights though its loss was still a number."""
    if not all(bool(torch.isfinite(parameter).all()) for parameter in stage.parameters):
        raise LossIsNotFinite(f"weights are no longer finite after epoch {epoch + 1} of stage {stage.name!r}")


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
