"""How the steps of an epoch are run: one after the other, or (``captured.py``) as replays of one graph."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from refilled.data import Batch, Batches, Plan
from refilled.data.augment import Show, show
from refilled.data.randomness import seed_global
from refilled.training.step import PlainStep

Answers = Callable[[Batch], Tensor]
"""From a batch to the answers [B + U, width] of the network that the stage asks."""


@dataclass(frozen=True)
class Schedule:
    """What an epoch's steps have beside their images; one number per step."""

    rates: Sequence[float]
    """Learning rates."""
    progress: Sequence[float]
    """Share of the stage that lies behind."""
    seeds: tuple[int, ...]
    """Seed, stage and epoch: dropout of a step draws from these and the step's number alone."""


class Epochs(Protocol):
    """Runs epochs of one stage."""

    step: PlainStep

    def run(self, plan: Plan, schedule: Schedule) -> Iterator[Tensor]:
        """Do the planned steps; yields each one's loss terms [terms], still on the device."""
        ...


def seed_step(device: torch.device, schedule: Schedule, number: int) -> None:
    """Dropout draws from the global generator; a resumed run, or several in turns, draw the same."""
    seed_global(device, *schedule.seeds, number)


class PlainEpochs:
    """One step after the other, each launched by itself.

    Args:
        step: a training step.
        batches: the training images.
        answers: of the network that the stage asks; None: the loss asks it itself.
        show: augments images.
    """

    def __init__(self, step: PlainStep, batches: Batches, answers: Answers | None = None, show: Show = show):
        self.step, self.batches, self.answers, self.show = step, batches, answers, show

    def run(self, plan: Plan, schedule: Schedule) -> Iterator[Tensor]:
        """Do the planned steps; yields each one's loss terms [terms]."""
        device = self.batches.device
        progress = torch.tensor(schedule.progress, dtype=torch.float32, device=device)
        stream = self.batches.source.stream(plan.rows)
        for number, (raw, rows, views) in enumerate(zip(stream, plan.rows, plan.views)):
            seed_step(device, schedule, number)
            yield self.step(self.batch(raw, rows, views, progress[number]), schedule.rates[number])

    def batch(self, raw: Tensor, rows: Tensor, views: Tensor, progress: Tensor) -> Batch:
        """What the step sees."""
        batch = self.batches.assemble(raw, rows, views, self.show)
        batch.progress = progress
        if self.answers is not None:
            with torch.autocast(
                rows.device.type,
                dtype=self.step.autocast_dtype,
                enabled=self.step.autocast_dtype is not None,
            ):
                batch.answers = self.answers(batch)
        return batch


class Snapshot:
    """All that a step changes, to be put back after steps that were only tried.

    Args:
        step: its optimizer's state belongs to it.
        modules: the student, and what is trained beside it.
    """

    def __init__(self, step: PlainStep, modules: Sequence[nn.Module]):
        self.optimizer = step.optimizer
        tensors = [t for module in modules for t in module.state_dict(keep_vars=True).values()]
        tensors += [state["momentum_buffer"] for state in self._momenta()]
        self.kept = [(tensor, tensor.detach().clone()) for tensor in tensors]

    def _momenta(self) -> list[dict[str, Tensor]]:
        return [state for state in self.optimizer.state.values() if "momentum_buffer" in state]

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back, in place."""
        for tensor, value in self.kept:
            tensor.copy_(value)
        self.optimizer.zero_grad(set_to_none=True)


def start_momenta(step: PlainStep) -> None:
    """Momentum 0 for every parameter that has none: the same as none at all, but in a place of its own."""
    for group in step.optimizer.param_groups:
        if group["momentum"] > 0:
            for parameter in group["params"]:
                step.optimizer.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))
