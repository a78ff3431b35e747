"""What the teacher's own head says, over the classes that the student shares with it.

This is no part of the ReFilled paper, whose teacher speaks through class centres alone. Of a class that both
know, the teacher has learned more than its centre, and its head says it. Where it knows all of the student's
classes that is plain distillation. Where it knows some of them it is kept to images without labels, as far as
it takes them to be of such a class: on labelled images it did harm there (results/recipes.md).
"""

import torch
from torch import Tensor

from refilled import objectives
from refilled.data import Batches
from refilled.errors import UserError
from refilled.labels import Overlap
from refilled.methods.mixtures import Seen
from refilled.methods.refilled_settings import RefilledSettings
from refilled.models import Network


class SharedHead:
    """The term.

    Args:
        teacher: frozen.
        shared: int64 [K, 2], columns of each shared class in the teacher's and in the student's logits.
        labelled: weight of images with labels, and mixtures of them.
        unlabelled: weight of images without labels, as a group of their own.
        tau: temperature of both networks.
        instead: share of cross-entropy that it takes the place of.
        fade: share of its weight that has faded away at the end of the stage.
    """

    def __init__(
        self,
        teacher: Network,
        shared: Tensor,
        labelled: float,
        unlabelled: float,
        tau: float,
        instead: float = 0.0,
        fade: float = 0.0,
    ):
        self.fade = fade
        self.teacher, self.weights, self.tau, self.instead = teacher, (labelled, unlabelled), tau, instead
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
    """The term for these two, or None where it has no weight: each is for what there is."""
    overlap = teacher.classes.overlap(student.classes)
    check_head(settings, overlap, bool(train.unlabelled))
    is_same = not overlap.only_there and len(overlap.pairs) > 1
    instead = (settings.head_share or 0.0) if is_same else 0.0
    labelled = instead or (settings.head_same if is_same else 0.0)
    unlabelled = settings.head_unlabelled if train.unlabelled else 0.0
    if not labelled and not unlabelled:
        return None
    shared = torch.tensor(overlap.pairs, device=train.device)
    fade = settings.fade if settings.head_fade is None else settings.head_fade
    return SharedHead(teacher, shared, labelled, unlabelled, settings.head_tau, instead, fade)


def check_head(settings: RefilledSettings, overlap: Overlap, unlabelled: bool) -> None:
    """Refuse what was asked of a teacher's head that does not know the classes; a default may stay.

    Args:
        settings: of the method.
        overlap: of the teacher's classes (here) and the student's (there).
        unlabelled: whether there are images without labels.
    """
    usual, is_same = type(settings)(), not overlap.only_there
    for name in ("head_same", "head_share"):
        given = getattr(settings, name)
        if not is_same and given not in (0, getattr(usual, name)):
            raise UserError(
                f"{name}={given} is for a teacher that knows all classes of the student, and "
                f"{len(overlap.only_there)} of them are new to it: leave it out"
            )
    if unlabelled and settings.head_unlabelled and len(overlap.pairs) < 2:
        raise UserError(
            f"head_unlabelled is about telling apart classes that teacher and student share, and there are "
            f"{len(overlap.pairs)}: leave it out"
        )
    is_mute = not is_same and not (unlabelled and settings.head_unlabelled)
    for name in ("head_tau", "head_fade"):
        given = getattr(settings, name)
        if is_mute and (settings.head_same or settings.head_share) and given != getattr(usual, name):
            raise UserError(
                f"{name}={given} is for what the teacher's head says, which is not asked here: "
                f"{len(overlap.only_there)} of the student's classes are new to it. Leave it out"
            )
