"""The whole step in one CUDA graph: augmentation, teacher, student, objective, backward pass and update.

A step of a small network is hundreds of kernels of a few microseconds each, and launching them from Python
takes longer than running them. Recorded once and replayed, they follow each other without a gap. An
epoch's draws, learning rates and losses lie in tensors of their own; the graph finds its step by a counter
on the device, so that a replay needs nothing from the host.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from refilled.data import Batches, Plan
from refilled.data.augment import Show, show
from refilled.data.source import Resident
from refilled.training.epochs import Answers, PlainEpochs, Schedule, Snapshot, seed_step, start_momenta
from refilled.training.replay import replay, stream_to_capture_on, warm_up
from refilled.training.step import PlainStep


class CapturedEpochs:
    """Replays one captured step.

    Args:
        step: a training step; its optimizer is as it should start.
        batches: the training images, on a CUDA device.
        answers: of the network that the stage asks; None: the loss asks it itself.
        modules: the student and what is trained beside it; capturing leaves them as they were.
        plan: the draws of any epoch, for the shapes and the steps that are tried.
        show: augments images.
    """

    def __init__(
        self,
        step: PlainStep,
        batches: Batches,
        answers: Answers | None,
        modules: Sequence[nn.Module],
        plan: Plan,
        show: Show = show,
    ):
        self.step, self.batches = step, batches
        self._plain = PlainEpochs(step, batches, answers, show)
        device, steps = batches.device, len(plan)
        self._rows, self._views = plan.rows.clone(), plan.views.clone()
        self._rates, self._progress = torch.zeros(2, steps, device=device).unbind(0)
        self._number = torch.zeros(1, dtype=torch.int64, device=device)
        # Images that are not on the device are put here before each replay.
        self._raw = None if isinstance(batches.source, Resident) else batches.source.take(plan.rows[0])
        start_momenta(step)
        snapshot = Snapshot(step, modules)
        try:
            self._random = warm_up(lambda: self._one(0 * self._number))
            step.optimizer.zero_grad(set_to_none=True)
            self._losses = torch.zeros(steps, len(step.terms), device=device)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=stream_to_capture_on()):
                self._step()
        finally:
            snapshot.restore()

    def run(self, plan: Plan, schedule: Schedule) -> Iterator[Tensor]:
        """Do the planned steps; yields each one's loss terms [terms], which stay until the next epoch."""
        self._rows.copy_(plan.rows)
        self._views.copy_(plan.views)
        self._rates.copy_(torch.tensor(schedule.rates))
        self._progress.copy_(torch.tensor(schedule.progress))
        self._number.zero_()
        stream = None if self._raw is None else self.batches.source.stream(plan.rows)
        for number in range(len(plan)):
            if self._raw is not None and stream is not None:
                self._raw.copy_(next(stream))
            if self._random:
                seed_step(self.batches.device, schedule, number)
            replay(self._graph, self._random)
            yield self._losses[number]

    def _step(self) -> None:
        self._losses.index_copy_(0, self._number, self._one(self._number)[None])
        self._number += 1

    def _one(self, number: Tensor) -> Tensor:
        rows, views = self._rows[number][0], self._views[number][0]
        raw = self.batches.source.take(rows) if self._raw is None else self._raw
        batch = self._plain.batch(raw, rows, views, self._progress[number][0])
        return self.step(batch, self._rates[number])
