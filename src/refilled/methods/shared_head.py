"""What the teacher's own head says of images, over the classes that the student shares.

This is no part of the ReFilled paper, whose teacher speaks through class centres alone. Of a class that both
know, the teacher has learned more than its centre: its head says it of any image, with a label or without, as
far as it takes the image to be of such a class. Where all classes are shared this is plain distillation.
"""

import torch
from torch import Tensor

from refilled import objectives
from refilled.data import Batches
from refilled.errors import UserError
from refilled.methods.mixtures import Seen
from refilled.methods.refilled_settings import RefilledSettings
from refilled.models import Network


class SharedHead:
    """The term.

    Args:
        teacher: frozen.
        shared: int64 [K, 2], columns of each shared class in the teacher's and in the student's logits.
        weight: of images with labels, and mixtures of them.
        unlabelled: of images without labels, as a group of their own.
        tau: temperature of both networks.
    """

    def __init__(self, teacher: Network, shared: Tensor, weight: float, unlabelled: float, tau: float):
        self.teacher, self.weights, self.tau = teacher, (weight, unlabelled), tau
        self.here, self.there = shared.unbind(dim=1)

    def __call__(self, logits: Tensor, teacher_z: Tensor, seen: Seen) -> Tensor:
        """Scalar, for the student's logits [S, C] and the teacher's embeddings [S, d'] of what is seen."""
        with torch.no_grad():
            wanted = self.teacher.classify(teacher_z)
        groups = zip(self.weights, seen.parts(logits), seen.parts(wanted))
        terms = [weight * self._apart(ours, theirs) for weight, ours, theirs in groups if weight]
        return torch.stack(terms).sum()

    def _apart(self, ours: Tensor, theirs: Tensor) -> Tensor:
        return objectives.shared_kd(ours, theirs, self.here, self.there, tau=self.tau)


def shared_head(
    teacher: Network, student: Network, train: Batches, settings: RefilledSettings
) -> SharedHead | None:
    """The term for these two, or None where it has no weight: images without labels, if there are none."""
    unlabelled = settings.head_unlabelled if train.unlabelled else 0.0
    if not settings.head_shared and not unlabelled:
        return None
    pairs = teacher.classes.overlap(student.classes).pairs
    if len(pairs) < 2:
        asked = "head_shared" if settings.head_shared else "head_unlabelled"
        raise UserError(
            f"{asked} is about telling apart classes that teacher and student share, and there are "
            f"{len(pairs)}: leave it out"
        )
    shared = torch.tensor(pairs, device=train.device)
    return SharedHead(teacher, shared, settings.head_shared, unlabelled, settings.head_tau)
