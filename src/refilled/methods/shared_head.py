"""What the teacher's own head says of images without labels, over the classes that the student shares.

This is no part of the ReFilled paper. Of a class that both know, the teacher has learned more than a few
labelled images show; its head says it of any image, as far as it takes the image to be of such a class.
"""

import torch
from torch import Tensor

from refilled import objectives
from refilled.data import Batches
from refilled.errors import UserError
from refilled.models import Network


class SharedHead:
    """The term.

    Args:
        teacher: frozen.
        shared: int64 [K, 2], columns of each shared class in the teacher's and in the student's logits.
        weight: of the term.
    """

    def __init__(self, teacher: Network, shared: Tensor, weight: float):
        self.teacher, self.weight = teacher, weight
        self.here, self.there = shared.unbind(dim=1)

    def __call__(self, logits: Tensor, teacher_z: Tensor) -> Tensor:
        """Scalar, for the student's logits [U, C] and the teacher's embeddings [U, d'] of the same images."""
        with torch.no_grad():
            wanted = self.teacher.classify(teacher_z)
        return self.weight * objectives.shared_kd(logits, wanted, self.here, self.there)


def shared_head(teacher: Network, student: Network, train: Batches, weight: float) -> SharedHead | None:
    """The term for these two, or None where it has no weight or there are no images without labels."""
    if not weight or not train.unlabelled:
        return None
    pairs = teacher.classes.overlap(student.classes).pairs
    if len(pairs) < 2:
        raise UserError(
            f"head_unlabelled is about telling apart classes that teacher and student share, and there are "
            f"{len(pairs)}: leave it out"
        )
    return SharedHead(teacher, torch.tensor(pairs, device=train.device), weight)
