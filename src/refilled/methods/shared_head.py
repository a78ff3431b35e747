"""What the teacher's own head says of images, over the classes that the student shares.

This is no part of the ReFilled paper, whose teacher speaks through class centres alone. Of a class that both
know, the teacher has learned more than its centre, and its head says it: of images with labels, where they
are of such a class; of others, as far as it takes them to be. Where all classes are shared this is plain
distillation.
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
        classes: C, of the student.
        weight: of images with labels, and mixtures of them.
        unlabelled: of images without labels, as a group of their own.
        tau: temperature of both networks.
    """

    def __init__(
        self, teacher: Network, shared: Tensor, classes: int, weight: float, unlabelled: float, tau: float
    ):
        self.teacher, self.weight, self.unlabelled, self.tau = teacher, weight, unlabelled, tau
        self.here, self.there = shared.unbind(dim=1)
        self.is_shared = torch.zeros(classes, device=shared.device).index_fill(0, self.there, 1.0)

    def __call__(self, logits: Tensor, teacher_z: Tensor, seen: Seen) -> Tensor:
        """Scalar, for the student's logits [S, C] and the teacher's embeddings [S, d'] of what is seen."""
        with torch.no_grad():
            wanted, others_wanted = seen.parts(self.teacher.classify(teacher_z))
        (ours, others), groups = seen.parts(logits), []
        if self.weight:
            groups.append(self.weight * self._apart(ours, wanted, seen.by_class(self.is_shared)))
        if self.unlabelled:
            groups.append(self.unlabelled * self._apart(others, others_wanted))
        return torch.stack(groups).sum()

    def _apart(self, ours: Tensor, theirs: Tensor, trust: Tensor | None = None) -> Tensor:
        return objectives.shared_kd(ours, theirs, self.here, self.there, trust, tau=self.tau)


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
    return SharedHead(
        teacher, shared, len(student.classes), settings.head_shared, unlabelled, settings.head_tau
    )
