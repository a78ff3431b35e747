"""What the methods that match logits share: teachers of the same classes only, in whatever order."""

from collections.abc import Callable

import torch
from torch import Tensor

from refilled.data import Batch, Batches
from refilled.errors import UserError
from refilled.methods.stage import Stage, embed
from refilled.models import Network

LogitTerms = Callable[[Tensor, Tensor, Batch], dict[str, Tensor]]


def same_classes_for(method: str) -> Callable[[Network, Network], None]:
    """The check of a method: refuse a teacher whose classes are not the student's, naming the others."""

    def check(teacher: Network, student: Network) -> None:
        overlap = teacher.classes.overlap(student.classes)
        strangers = [f"only the teacher knows {_listing(overlap.only_here)}"] if overlap.only_here else []
        strangers += [f"only the student needs {_listing(overlap.only_there)}"] if overlap.only_there else []
        if strangers:
            raise UserError(
                f"{method} needs a teacher of the same classes: {'; '.join(strangers)}. "
                f"Use --method refilled, which works for any classes"
            )

    return check


def _listing(names: tuple[str, ...], most: int = 5) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def has_same_classes(teacher: Network, student: Network) -> bool:
    """Whether both know the same classes, in whatever order."""
    overlap = teacher.classes.overlap(student.classes)
    return not overlap.only_here and not overlap.only_there


def class_order(teacher: Network, student: Network, device: torch.device) -> Tensor:
    """Which of the teacher's classes each of the student's is, int64 [C]; for the same classes only."""
    pairs = sorted(teacher.classes.overlap(student.classes).pairs, key=lambda pair: pair[1])
    return torch.tensor([here for here, _ in pairs], device=device)


def logits_stage(
    teacher: Network, student: Network, train: Batches, terms: LogitTerms, epochs: int
) -> list[Stage]:
    """One stage for the whole student, with the teacher's logits in the student's class order.

    Args:
        teacher: frozen, in evaluation mode.
        student: all of it is trained.
        train: the training images.
        terms: (student's logits [B, C], teacher's logits [B, C], the batch) -> named terms.
        epochs: of the stage.
    """
    order = class_order(teacher, student, train.device)

    def loss(batch: Batch) -> dict[str, Tensor]:
        _, logits = student(batch.images)
        with torch.no_grad():
            teacher_logits = teacher.classify(embed(teacher, batch))
        return terms(logits, teacher_logits[:, order], batch)

    return [Stage("classifier", epochs, list(student.parameters()), loss, asks=teacher)]
