"""Plain knowledge distillation (Hinton, Vinyals, Dean 2015): for teachers of the same classes only."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from refilled import objectives
from refilled.checks import check_number
from refilled.data import Batch, Batches
from refilled.errors import UserError
from refilled.methods.stage import Method, Stage
from refilled.models import Network


@dataclass(frozen=True)
class KDSettings:
    """Settings of plain distillation; the loss is (1 - weight) cross-entropy + weight KD."""

    tau: float = 4.0
    """Temperature of both models."""
    weight: float = 0.9
    """Share of the distillation term."""

    def __post_init__(self) -> None:
        check_number("tau", self.tau, above=0)
        check_number("weight", self.weight, least=0, most=1)


def require_same_classes(teacher: Network, student: Network) -> None:
    """Refuse a teacher whose classes are not the student's, naming those that do not match."""
    overlap = teacher.classes.overlap(student.classes)
    strangers = [f"only the teacher knows {_listing(overlap.only_here)}"] if overlap.only_here else []
    strangers += [f"only the student needs {_listing(overlap.only_there)}"] if overlap.only_there else []
    if strangers:
        raise UserError(
            f"kd needs a teacher of the same classes: {'; '.join(strangers)}. "
            f"Use --method refilled, which works for any classes"
        )


def _listing(names: tuple[str, ...], most: int = 5) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def stages(
    teacher: Network, student: Network, train: Batches, settings: KDSettings, epochs: int
) -> list[Stage]:
    """One stage: cross-entropy and the teacher's softened logits, in the student's class order."""
    pairs = sorted(teacher.classes.overlap(student.classes).pairs, key=lambda pair: pair[1])
    order = torch.tensor([here for here, _ in pairs], device=train.labels.device)

    def loss(batch: Batch) -> dict[str, Tensor]:
        _, logits = student(batch.images)
        with torch.no_grad():
            _, teacher_logits = teacher(batch.images)
        return {
            "cross_entropy": (1 - settings.weight) * F.cross_entropy(logits.float(), batch.labels),
            "kd": settings.weight * objectives.kd(logits, teacher_logits[:, order], tau=settings.tau),
        }

    return [Stage("classifier", epochs, list(student.parameters()), loss)]


METHOD = Method(
    "kd", "plain distillation of logits; same classes only", KDSettings, stages, check=require_same_classes
)
