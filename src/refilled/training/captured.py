"""The whole step in one CUDA graph: augmentation, teacher, student, objective, backward pass and update.

A step of a small network is hundreds of kernels of a few microseconds each, and launching them from Python
takes longer than running them. Recorded once and replayed, they follow each other without a gap. What
differs from step to step the graph finds on the device (``drawn.py``): a replay needs nothing from the host.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from refilled.data import Batches, Plan
from refilled.data.augment import Show, show
from refilled.data.source import Resident
from refilled.training.drawn import Drawn
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
        self._drawn = Drawn(plan, batches.device)
        # Images that are not on the device are put here before each replay.
        self._raw = None if isinstance(batches.source, Resident) else batches.source.take(plan.rows[0])
        start_momenta(step)
        snapshot = Snapshot(step, modules)
        try:
            self._random = warm_up(self._one)
            step.optimizer.zero_grad(set_to_none=True)
            self._drawn.make_room(len(step.terms))
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=stream_to_capture_on()):
                self._drawn.write(self._one())
        finally:
            snapshot.restore()

    def run(self, plan: Plan, schedule: Schedule) -> Iterator[Tensor]:
        """Do the planned steps; yields each one's loss terms [terms], which stay until the next epoch."""
        self._drawn.put(plan, schedule)
        stream = None if self._raw is None else self.batches.source.stream(plan.rows)
        for number in range(len(plan)):
            if self._raw is not None and stream is not None:
                self._raw.copy_(next(stream))
            if self._random:
                seed_step(self.batches.device, schedule, number)
            replay(self._graph, self._random)
            yield self._drawn.losses[number]

    def close(self) -> None:
        """Nothing is left to do."""

    def _one(self) -> Tensor:
        rows, views, rate, progress = self._drawn.now()
        raw = self.batches.source.take(rows) if self._raw is None else self._raw
        return self.step(self._plain.batch(raw, rows, views, progress), rate)
