"""One-step incremental learning: the student learns its own classes and the teacher's, without their data.

Ye, Lu, Zhan, Section 5.3 (KD for one-step incremental learning). The head has a column for every class of
either. Columns of the student's own classes are trained by whatever method; those of the teacher's classes
learn from the teacher's predictions on the new images, as in Li and Hoiem, Learning without Forgetting, 2018.
Where a class is known to both it is one column, which learns from both.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from refilled import objectives
from refilled.data import Batch, Batches
from refilled.errors import UserError
from refilled.labels import LabelSpace, Overlap
from refilled.methods.stage import Method, Stage, embed
from refilled.models import Network


def all_classes(teacher: Network, own: LabelSpace) -> LabelSpace:
    """The teacher's classes, named and ordered as it has them, then those of the student that are new."""
    return LabelSpace([*teacher.classes, *teacher.classes.overlap(own).only_there])


def columns_of(classes: LabelSpace, own: LabelSpace) -> list[int]:
    """For each of the student's own classes, its place among all classes."""
    overlap: Overlap = classes.overlap(own)
    places = {there: here for here, there in overlap.pairs}
    return [places[label] for label in range(len(own))]


def check_keeping(method: Method, teacher: Network) -> None:
    """Refuse a method that cannot, and a teacher that has no classes to keep."""
    if not method.keeps:
        raise UserError(
            f"method {method.name} cannot keep the teacher's classes; use --method refilled, rkd or student"
        )
    if len(teacher.classes) < 2 or isinstance(teacher.head, nn.Identity):
        raise UserError(
            f"teacher {teacher.spec} has no head whose classes could be kept; use a teacher with one, or "
            f"leave --keep-teacher-classes out"
        )


class OwnClasses(Network):
    """A student of all classes as a method sees it: with its own classes only.

    Args:
        student: its head has a column for every class.
        classes: its own ones.
    """

    def __init__(self, student: Network, classes: LabelSpace):
        super().__init__(student.spec, student.dim, classes, student.preprocess)
        self.student, self.head = student, student.head
        self.register_buffer("columns", torch.tensor(columns_of(student.classes, classes)), persistent=False)
        self.columns: Tensor
        self.classified: Tensor | None = None
        """The embeddings [B, dim] that were classified last."""

    def prepare(self, images: Tensor) -> Tensor:
        """As the student does."""
        return self.student.prepare(images)

    def embed_prepared(self, prepared: Tensor) -> Tensor:
        """As the student does."""
        return self.student.embed_prepared(prepared)

    def classify(self, embeddings: Tensor) -> Tensor:
        """Logits [B, own classes]."""
        self.classified = embeddings
        return self.student.classify(embeddings)[:, self.columns]


def keeping_stages(
    method: Method,
    teacher: Network,
    student: Network,
    own: LabelSpace,
    train: Batches,
    settings: object,
    epochs: int,
    *,
    weight: float,
    tau: float,
) -> list[Stage]:
    """The method's stages for the student's own classes; where the head is trained, the term that keeps
    the teacher's is added.

    Args:
        method: trains the own classes.
        teacher: frozen; its classes come first in the student's head.
        student: of all classes.
        own: the classes of the training images.
        train: the training images, labelled by ``own``.
        settings: of the method.
        epochs: of all stages.
        weight: of the term that keeps the teacher's classes.
        tau: its temperature.
    """
    seen = OwnClasses(student, own).to(train.device)

    def keep(stage: Stage) -> Stage:
        def loss(batch: Batch) -> dict[str, Tensor]:
            terms = stage.loss(batch)
            if seen.classified is None:
                return terms
            with torch.no_grad():
                wanted = teacher.classify(embed(teacher, batch))
            logits = student.classify(seen.classified)[:, : len(teacher.classes)]
            seen.classified = None
            return terms | {"keeping": weight * objectives.kd(logits, wanted, tau=tau)}

        if stage.judge != "classifier" or weight == 0:
            return stage
        return replace(stage, loss=loss, asks=teacher)

    return [keep(stage) for stage in method.stages(teacher, seen, train, settings, epochs)]


@torch.no_grad()
def calibrate(student: Network) -> bool:
    """Drop the biases and give all class weights one length, their mean one, so that classes learned in
    different ways can be compared; returns whether the head is a linear layer and it was done."""
    head = student.head
    if not isinstance(head, nn.Linear):
        return False
    length = head.weight.norm(dim=1).mean()
    head.weight.copy_(F.normalize(head.weight, dim=1) * length)
    if head.bias is not None:
        head.bias.zero_()
    return True
