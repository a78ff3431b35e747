"""What the methods that match logits share: one stage, and the teacher's logits in the student's order."""

from collections.abc import Callable

import torch
from torch import Tensor

from refilled.data import Batch, Batches
from refilled.methods.same_classes import class_order
from refilled.methods.stage import Stage, embed
from refilled.models import Network

LogitTerms = Callable[[Tensor, Tensor, Batch], dict[str, Tensor]]


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
