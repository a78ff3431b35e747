"""A student that starts as its teacher: the same architecture, the same weights."""

import torch
from torch import Tensor

from refilled.errors import UserError
from refilled.methods.keeping import OwnClasses
from refilled.models import Network


def whole(student: Network) -> Network:
    """The student itself, where a method was shown only its own classes."""
    return student.student if isinstance(student, OwnClasses) else student


def backbone(network: Network) -> dict[str, Tensor]:
    """Weights and statistics of everything but the head, by name; the tensors themselves."""
    of_head = {id(tensor) for tensor in network.head.state_dict(keep_vars=True).values()}
    return {name: t for name, t in network.state_dict(keep_vars=True).items() if id(t) not in of_head}


def check_same_architecture(method: str, teacher: Network, student: Network) -> None:
    """Refuse a student that cannot take over the teacher's weights."""
    ours, theirs = backbone(whole(student)), backbone(teacher)
    if {n: t.shape for n, t in ours.items()} != {n: t.shape for n, t in theirs.items()}:
        raise UserError(
            f"{method} needs a student of the teacher's architecture: that is {teacher.spec}, not "
            f"{student.spec}. Use --method refilled, which works for any two networks"
        )


@torch.no_grad()
def take_over(teacher: Network, student: Network) -> None:
    """Copy the teacher's backbone and, into a head that has columns for the teacher's classes, its head."""
    inner = whole(student)
    for ours, theirs in zip(backbone(inner).values(), backbone(teacher).values()):
        ours.copy_(theirs)
    if inner is not student:
        for ours, theirs in zip(inner.head.parameters(), teacher.head.parameters()):
            ours[: len(teacher.classes)] = theirs
