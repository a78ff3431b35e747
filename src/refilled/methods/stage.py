"""What a method is made of. The training loop knows these and nothing else of any method."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from refilled.data import Batch, Batches
from refilled.errors import UserError
from refilled.methods.same_classes import refuse_other_classes
from refilled.models import Network
from refilled.models.wanted import EMBEDDINGS, Wanted

Judge = Literal["classifier", "embedding"]


@dataclass(frozen=True)
class Stage:
    """One stretch of training with one loss.

    Args:
        name: shown in progress, metrics and checkpoints.
        epochs: passes over the training images.
        parameters: what is trained.
        loss: from a batch to named terms; their sum is minimised.
        judge: what validation measures: the classifier's accuracy, or that of the nearest class mean
            in the embedding, for a stage that does not train the head.
        asks: the frozen network of which the loss wants nothing but :func:`embed`, or :func:`ask` for what
            is wanted. Its answers may then be looked up instead of computed.
        wanted: what the loss wants of the network that it asks.
        recipe: all that decides what the stage does, beside its networks, images, epochs and how is trained;
            where trainings begin with the same, one of them may do it for all. None: it is not told.
        beside: what is kept in checkpoints beside the student: layers that only this stage needs, a memory
            of earlier batches (as buffers). Its parameters are trained if ``parameters`` has them.
        begin: called once when the stage begins, not when it goes on from a checkpoint.
        group: images of a class that come side by side in its shuffles.
    """

    name: str
    epochs: int
    parameters: list[nn.Parameter]
    loss: Callable[[Batch], dict[str, Tensor]]
    judge: Judge = "classifier"
    asks: Network | None = None
    wanted: Wanted = EMBEDDINGS
    recipe: str | None = None
    beside: nn.Module | None = None
    begin: Callable[[], None] | None = None
    group: int = 1

    def asks_like(self, other: "Stage") -> bool:
        """Whether both ask the same network for the same."""
        return self.asks is other.asks and self.wanted == other.wanted


@dataclass(frozen=True)
class Method:
    """A way to train a student, with or without a teacher.

    Args:
        name: what ``--method`` takes.
        summary: one line for ``--help``.
        settings: a dataclass of the method's own settings; its defaults just work.
        stages: (teacher, student, train, settings, epochs) -> stages whose epochs add up to ``epochs``,
            so that two methods with the same epochs are compared fairly. The teacher comes frozen and in
            evaluation mode.
        needs_teacher: False for a student alone.
        same_classes: whether the teacher must know the student's classes and no others.
        fits: raises a UserError where teacher and student do not go together for another reason.
        takes_over: whether the student starts from the teacher's weights.
        keeps: whether the student may also learn the teacher's classes, see ``keeping.py``.
        unlabelled: whether its stages have a use for images without labels, see ``imitation.py``.
    """

    name: str
    summary: str
    settings: type
    stages: "StageMaker"
    needs_teacher: bool = True
    same_classes: bool = False
    fits: Callable[[Network, Network], None] | None = None
    takes_over: bool = False
    keeps: bool = False
    unlabelled: bool = False

    def check(self, teacher: Network, student: Network) -> None:
        """Refuse, before any training, a teacher and a student that do not go together."""
        if self.same_classes:
            refuse_other_classes(self.name, teacher.classes, student.classes)
        if self.fits is not None:
            self.fits(teacher, student)


StageMaker = Callable[[Network, Network, Batches, Any, int], list[Stage]]


def share(epochs: int, first_share: float) -> tuple[int, int]:
    """Epochs of two stages; each gets at least one."""
    if epochs < 2:
        raise UserError(f"a method of two stages needs at least 2 epochs, not {epochs}")
    first = min(max(1, round(epochs * first_share)), epochs - 1)
    return first, epochs - first


def embed(teacher: Network, batch: Batch) -> Tensor:
    """The frozen teacher's embeddings [B + U, dim] of a batch; those that come with the batch, if they do."""
    return ask(teacher, batch, EMBEDDINGS)


def ask(teacher: Network, batch: Batch, wanted: Wanted) -> Tensor:
    """The frozen teacher's answers [B + U, width] for a batch; those that come with the batch, if they do."""
    if batch.answers is not None:
        return batch.answers
    with torch.no_grad():
        return wanted(teacher, teacher.prepare(batch.images))
