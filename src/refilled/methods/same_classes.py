"""Teachers of the student's own classes, in whatever order: some methods take no others."""

import torch
from torch import Tensor

from refilled.errors import UserError
from refilled.labels import LabelSpace
from refilled.models import Network


def refuse_other_classes(method: str, teacher: LabelSpace, student: LabelSpace) -> None:
    """Refuse a teacher whose classes are not the student's, naming the others."""
    overlap = teacher.overlap(student)
    strangers = [f"only the teacher knows {_listing(overlap.only_here)}"] if overlap.only_here else []
    strangers += [f"only the student needs {_listing(overlap.only_there)}"] if overlap.only_there else []
    if strangers:
        raise UserError(
            f"{method} needs a teacher of the same classes: {'; '.join(strangers)}. "
            f"Use --method refilled, which works for any classes"
        )


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
