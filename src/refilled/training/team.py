"""One step of several trainings: their students go through the same kernels, all else is each one's own."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from refilled.data import Batch, Batches
from refilled.data.augment import Show
from refilled.models import Network
from refilled.training.compiled import GivenLoss
from refilled.training.drawn import Drawn
from refilled.training.epochs import Answers, PlainEpochs, Snapshot, start_momenta
from refilled.training.replay import warm_up
from refilled.training.step import PlainStep

T = TypeVar("T")
Forward = Callable[[Sequence[Network], Sequence[Tensor]], list[Any]]
"""From networks and images of each to what each says of its own."""


class Member:
    """What one training brings into a team.

    Args:
        step: with an optimizer as it should start, and a :class:`GivenLoss`.
        batches: images that are on the device.
        answers: of the network that the stage asks; None: the loss asks it itself.
        modules: the student, and what is trained beside it.
        show: augments images.
        salt: of the stage's plans.
    """

    def __init__(
        self,
        step: PlainStep,
        batches: Batches,
        answers: Answers | None,
        modules: Sequence[nn.Module],
        show: Show,
        salt: int,
    ):
        assert isinstance(step.loss, GivenLoss), "what its student says is known before its loss is"
        self.step, self.batches, self.modules, self.given = step, batches, modules, step.loss
        self._plain = PlainEpochs(step, batches, answers, show)
        self.drawn = Drawn(batches.plan(0, salt), batches.device)
        if batches.device.type == "cuda":
            self.aside = torch.cuda.Stream(batches.device)
            """For what is its own, so that it fills the gaps of others'."""

    @property
    def student(self) -> Network:
        """Its network."""
        return self.given.student

    @property
    def kind(self) -> tuple[Any, ...]:
        """Trainings of the same kind can go together."""
        student, batches = self.student, self.batches
        of_student = (
            type(student), student.preprocess.size, tuple(p.shape for p in student.backbone_parameters()),
        )  # fmt: skip
        of_batches = (batches.batch_size, batches.unlabelled, len(batches), batches.source.shape[1:])
        return (*of_student, self.given.asked, *of_batches, batches.device, self.step.autocast_dtype)

    def batch(self) -> tuple[Batch, Tensor]:
        """Of the step that is next, and its learning rate."""
        rows, views, rate, progress = self.drawn.now()
        return self._plain.batch(self.batches.source.take(rows), rows, views, progress), rate

    def losses(self, batch: Batch, answer: Any) -> tuple[Tensor, Tensor]:
        """Loss terms [terms], by what its student says of the batch, and their sum."""
        self.given.answer = answer
        values = self.step.values(batch)
        self.given.answer = None
        self.step.optimizer.zero_grad(set_to_none=True)
        return values, values.sum()

    def update(self, rate: Tensor) -> None:
        """Move its parameters."""
        self.step.update(rate)


class Team:
    """Members that make each step together, captured in one graph on a GPU.

    Args:
        members: of one kind; their weights stay as they are until the first step.
        forward: what is asked of all their students.
    """

    def __init__(self, members: Sequence[Member], forward: Forward):
        self.members, self._forward = list(members), forward
        self.steps = 0
        """That were made."""
        self._ready: set[Member] = set()
        self._gone: set[Member] = set()
        self._device = members[0].batches.device
        for member in members:
            start_momenta(member.step)
        snapshots = [Snapshot(member.step, member.modules) for member in members]
        self._graph: torch.cuda.CUDAGraph | None = None
        try:
            if self._device.type == "cuda":
                self._stream = torch.cuda.Stream(self._device)
                with torch.cuda.stream(self._stream):
                    self._capture(self._stream)
            else:
                self._try()
        finally:
            for snapshot in snapshots:
                snapshot.restore()
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)

    def come(self, member: Member) -> None:
        """A member has its next step before it; when all have, the step is made."""
        if self._graph is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        self._ready.add(member)
        self._go()

    def leave(self, member: Member) -> None:
        """One comes no more; its part of the step is made for nobody."""
        self._gone.add(member)
        self._go()

    def wait(self) -> None:
        """What follows on the current stream does so behind the last step."""
        if self._graph is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def _go(self) -> None:
        """Make a step if all are ready for it."""
        if not self._ready or self._ready | self._gone < set(self.members):
            return
        self._ready.clear()
        self.steps += 1
        if self._graph is None:
            self._step()
        else:
            with torch.cuda.stream(self._stream):
                self._graph.replay()

    def _capture(self, stream: torch.cuda.Stream) -> None:
        if warm_up(self._try):
            raise RuntimeError("a step draws random numbers")  # each would have to be seeded by itself
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            self._step()
        self._graph = graph

    def _try(self) -> None:
        """A step that does not count."""
        self._one()
        for member in self.members:
            member.step.optimizer.zero_grad(set_to_none=True)
            member.drawn.make_room(len(member.step.terms))

    def _step(self) -> None:
        for member, values in zip(self.members, self._one()):
            member.drawn.write(values)

    def _one(self) -> list[Tensor]:
        """Loss terms [terms] of each member."""
        # What goes from one stream to another is kept until they have met again: all of it, to the end.
        batches = self._each(Member.batch)
        with self._autocast():
            said = self._forward(
                [member.student for member in self.members], [one.images for one, _ in batches]
            )
        values = self._each(Member.losses, [batch for batch, _ in batches], said)
        torch.autograd.backward([whole for _, whole in values])
        self._each(Member.update, [rate for _, rate in batches])
        return [terms.detach() for terms, _ in values]

    def _each(self, work: Callable[..., T], *given: Sequence[Any]) -> list[T]:
        """Let all members do it, side by side, between what was before and what comes behind."""
        if self._device.type != "cuda":
            return [work(member, *own) for member, *own in zip(self.members, *given)]
        here, done = torch.cuda.current_stream(self._device), []
        for member in self.members:
            member.aside.wait_stream(here)
        for member, *own in zip(self.members, *given):
            with torch.cuda.stream(member.aside):
                done.append(work(member, *own))
        for member in self.members:
            here.wait_stream(member.aside)
        return done

    def _autocast(self) -> torch.autocast:
        dtype = self.members[0].step.autocast_dtype
        return torch.autocast(self._device.type, dtype=dtype, enabled=dtype is not None)
