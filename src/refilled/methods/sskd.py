"""Self-supervision as a second task: what the teacher takes for the same picture, turned.

Xu, Liu, Li, Loy: Knowledge Distillation Meets Self-Supervision, 2020 (SSKD). Every image of a batch is also
shown turned by 90, 180 and 270 degrees, and a small head on the embedding says from which image of the batch
a turned one was made. First the teacher's head learns that, on top of the frozen teacher; then the student
learns, beside its labels, the teacher's predictions for normal and for turned images, and the teacher's
similarities between the two. Of the teacher's wrong similarities only the less wrong ones are taught.

Weights, temperatures, shares of wrong answers, and the teacher's head's 60 epochs beside the student's 240
are the defaults of the authors' code (xuguodong03/SSKD), as is that the head itself is trained without a
temperature. There a teacher has seen turned images when it was trained; ours comes as it is. Each of their
turned images is cropped anew, ours are the batch's own, turned.

Where the teacher's classes are not the student's, its predictions cannot be taught: those two terms drop
out, their share of the labels' term goes to the labels, and the similarities remain. Ye, Lu and Zhan use
only the embedding of SSKD, and distil the classifier in their own way.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from refilled import objectives
from refilled.checks import check_number
from refilled.data import Batch, Batches
from refilled.methods.fresh import fresh
from refilled.methods.same_classes import class_order, has_same_classes
from refilled.methods.stage import Method, Stage, share
from refilled.models import Network

_TURNS = (1, 2, 3)  # quarters


@dataclass(frozen=True)
class SSKDSettings:
    """The loss is the sum of labels, predictions, predictions for turned images, and similarities."""

    cross_entropy_weight: float = 0.1
    """Weight of the labels."""
    kd_weight: float = 0.9
    """Weight of the teacher's predictions; for other classes it is added to that of the labels."""
    turned_weight: float = 2.7
    """Weight of the teacher's predictions for turned images; of no use for other classes."""
    similarity_weight: float = 10.0
    """Weight of the similarities between turned and normal images."""
    tau: float = 4.0
    """Temperature of predictions."""
    turned_tau: float = 4.0
    """Temperature of predictions for turned images."""
    similarity_tau: float = 0.5
    """Temperature of similarities."""
    turned_share: float = 1.0
    """Share of the teacher's wrong predictions for turned images that is taught, the least wrong first."""
    similarity_share: float = 0.75
    """Share of the teacher's wrong similarities that is taught, the least wrong first."""
    head_share: float = 0.2
    """Share of the epochs in which the teacher's head is trained, and not yet the student."""

    def __post_init__(self) -> None:
        for name in ("cross_entropy_weight", "kd_weight", "turned_weight", "similarity_weight"):
            check_number(name, getattr(self, name), least=0)
        for name in ("tau", "turned_tau", "similarity_tau"):
            check_number(name, getattr(self, name), above=0)
        for name in ("turned_share", "similarity_share"):
            check_number(name, getattr(self, name), least=0, most=1)
        check_number("head_share", self.head_share, above=0, below=1)


def with_turned(images: Tensor) -> Tensor:
    """Square images [B, C, S, S], and after them all of them turned: [4B, C, S, S]."""
    return torch.cat([images, *(torch.rot90(images, turns, (2, 3)) for turns in _TURNS)])


def for_turned(numbers: Tensor) -> Tensor:
    """What belongs to images [B], for the turned ones among :func:`with_turned` [3B]."""
    return numbers.repeat(len(_TURNS))


def head(dim: int) -> nn.Module:
    """From embeddings [B, dim] to those of the second task [B, dim]."""
    return nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))


def head_stage(teacher: Network, teacher_head: nn.Module, epochs: int) -> Stage:
    """The teacher's head learns the second task; no network is trained."""

    def loss(batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            embeddings = teacher.embed(with_turned(batch.images))
        made = teacher_head(embeddings)
        origins = for_turned(torch.arange(len(batch), device=made.device))
        return {
            "prediction": objectives.contrastive_prediction(made[len(batch) :], made[: len(batch)], origins)
        }

    beside = nn.ModuleDict({"teacher": teacher_head})
    return Stage("teacher's head", epochs, list(teacher_head.parameters()), loss, beside=beside)


def student_stage(
    teacher: Network,
    student: Network,
    teacher_head: nn.Module,
    train: Batches,
    settings: SSKDSettings,
    epochs: int,
) -> Stage:
    """The student learns its labels and all that the teacher and its head say."""
    student_head = fresh(train, lambda: head(student.dim), number=1)
    same_classes = has_same_classes(teacher, student)
    order = class_order(teacher, student, train.device) if same_classes else None
    label_weight = settings.cross_entropy_weight + (0.0 if same_classes else settings.kd_weight)

    def predictions(logits: Tensor, teacher_logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Terms of logits [4B, C]."""
        size = len(labels)
        return {
            "kd": settings.kd_weight
            * objectives.kd(logits[:size], teacher_logits[:size], tau=settings.tau),
            "turned": settings.turned_weight
            * objectives.selective_kd(
                logits[size:], teacher_logits[size:], for_turned(labels),
                tau=settings.turned_tau, wrong_share=settings.turned_share,
            ),
        }  # fmt: skip

    def similarities(made: Tensor, size: int) -> Tensor:
        """Of turned to normal images [3B, B], from what a head made of them [4B, d]."""
        return objectives.contrastive_scores(made[size:], made[:size])

    def loss(batch: Batch) -> dict[str, Tensor]:
        size, images = len(batch), with_turned(batch.images)
        embeddings, logits = student(images)
        with torch.no_grad():
            teacher_embeddings, teacher_logits = teacher(images)
            wanted = similarities(teacher_head(teacher_embeddings), size)
        found = similarities(student_head(embeddings), size)
        origins = for_turned(torch.arange(size, device=found.device))
        terms = {
            "cross_entropy": label_weight * F.cross_entropy(logits[:size].float(), batch.labels),
            "similarity": settings.similarity_weight
            * objectives.selective_kd(
                found, wanted, origins,
                tau=settings.similarity_tau, wrong_share=settings.similarity_share,
            ),
        }  # fmt: skip
        return terms if order is None else terms | predictions(logits, teacher_logits[:, order], batch.labels)

    beside = nn.ModuleDict({"teacher": teacher_head, "student": student_head})
    trained = [*student.parameters(), *student_head.parameters()]
    return Stage("classifier", epochs, trained, loss, beside=beside)


def stages(
    teacher: Network, student: Network, train: Batches, settings: SSKDSettings, epochs: int
) -> list[Stage]:
    """The teacher's head, then the student."""
    first, second = share(epochs, settings.head_share)
    teacher_head = fresh(train, lambda: head(teacher.dim))
    return [
        head_stage(teacher, teacher_head, first),
        student_stage(teacher, student, teacher_head, train, settings, second),
    ]


METHOD = Method("sskd", "kd, and which turned image is which, as the teacher sees it", SSKDSettings, stages)
