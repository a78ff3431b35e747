"""SEED, for any classes: similarities to many images as the teacher sees them, then cross-entropy.

Fang, Wang, Wang, Zhang, Yang, Liu: SEED: Self-supervised Distillation for Visual Representation, 2021.
A queue holds the teacher's embeddings of the last batches; the student learns the teacher's distribution of
similarities over the queue and the image itself. Queue (65,536) and student's temperature (0.2) are the
defaults of the authors' code (jacobswan1/SEED). The teacher's temperature there is 0.0001 by default; ours,
0.01, is the paper's as far as we know, and was not checked against its text.

Ye, Lu and Zhan use it as it is for distant tasks, and elsewhere in a supervised form: class labels decide
which instances are similar, over all instances of a mini-batch, without a queue. They say no more than that.
In our ``seed-supervised`` the teacher's probabilities of a batch's images of other classes are 0, and among
those of the own class they are the teacher's. Its temperature of 0.2 is ours: at 0.01 an image is similar to
itself alone, and labels would say nothing.

The authors' networks end in a projection to a common length; here a linear map beside the student does that,
only where the dimensions differ, and only in the first stage.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from refilled import objectives
from refilled.checks import check_number
from refilled.data import Batch, Batches
from refilled.methods.alone import cross_entropy_stage
from refilled.methods.fresh import fresh
from refilled.methods.projection import projection
from refilled.methods.stage import Method, Stage, embed, share
from refilled.models import Network


@dataclass(frozen=True)
class SupervisedSEEDSettings:
    """Settings of SEED over the images of a batch, with labels."""

    tau_student: float = 0.2
    """Temperature of the student's similarities."""
    tau_teacher: float = 0.2
    """Temperature of the teacher's similarities."""
    embedding_share: float = 0.5
    """Share of the epochs that goes to the first stage."""

    def __post_init__(self) -> None:
        check_number("tau_student", self.tau_student, above=0)
        check_number("tau_teacher", self.tau_teacher, above=0)
        check_number("embedding_share", self.embedding_share, above=0, below=1)


@dataclass(frozen=True)
class SEEDSettings(SupervisedSEEDSettings):
    """Settings of SEED over a queue, without labels."""

    tau_teacher: float = 0.01
    """Temperature of the teacher's similarities."""
    queue: int = 65536
    """Embeddings of the teacher that are kept: at most one for each training image, at least a batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("queue", self.queue, least=1)


class Queue(nn.Module):
    """The teacher's last embeddings; random ones until there are enough.

    Args:
        size: how many, at least a batch.
        dim: their length.
    """

    keys: Tensor
    place: Tensor

    def __init__(self, size: int, dim: int):
        super().__init__()
        self.register_buffer("keys", objectives.unit_rows(torch.randn(size, dim)))
        self.register_buffer("place", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def push(self, embeddings: Tensor) -> None:
        """Put embeddings [B, dim] in the place of the oldest."""
        places = (self.place + torch.arange(len(embeddings), device=embeddings.device)) % len(self.keys)
        self.keys.index_copy_(0, places, objectives.unit_rows(embeddings.float()))
        self.place.copy_((self.place + len(embeddings)) % len(self.keys))


def with_queue(
    teacher: Network, student: Network, train: Batches, settings: SEEDSettings, epochs: int
) -> list[Stage]:
    """Similarities to the queue, then cross-entropy."""
    first, second = share(epochs, settings.embedding_share)
    size = max(train.batch_size, min(settings.queue, len(train.labels)))
    project = projection(teacher, student, train)
    queue = fresh(train, lambda: Queue(size, teacher.dim), number=1)

    def loss(batch: Batch) -> dict[str, Tensor]:
        student_z, teacher_z = project(student.embed(batch.images)), embed(teacher, batch)
        similarity = objectives.similarity_distillation(
            student_z, teacher_z, queue.keys,
            tau_student=settings.tau_student, tau_teacher=settings.tau_teacher,
        )  # fmt: skip
        queue.push(teacher_z)
        return {"similarity": similarity}

    trained = [*student.backbone_parameters(), *project.parameters()]
    beside = nn.ModuleDict({"project": project, "queue": queue})
    similarity = Stage("embedding", first, trained, loss, judge="embedding", asks=teacher, beside=beside)
    return [similarity, cross_entropy_stage(student, second)]


def supervised(
    teacher: Network, student: Network, train: Batches, settings: SupervisedSEEDSettings, epochs: int
) -> list[Stage]:
    """Similarities within the batch, as the labels allow them, then cross-entropy."""
    first, second = share(epochs, settings.embedding_share)
    project = projection(teacher, student, train)

    def loss(batch: Batch) -> dict[str, Tensor]:
        student_z, teacher_z = project(student.embed(batch.images)), embed(teacher, batch)
        itself = torch.eye(len(batch), dtype=torch.bool, device=batch.labels.device)
        return {
            "similarity": objectives.similarity_distillation(
                student_z, teacher_z, teacher_z,
                compared=~itself, similar=batch.labels[:, None] == batch.labels,
                tau_student=settings.tau_student, tau_teacher=settings.tau_teacher,
            )
        }  # fmt: skip

    trained = [*student.backbone_parameters(), *project.parameters()]
    similarity = Stage("embedding", first, trained, loss, judge="embedding", asks=teacher, beside=project)
    return [similarity, cross_entropy_stage(student, second)]


METHODS = (
    Method("seed", "similarities to a queue of images, then cross-entropy", SEEDSettings, with_queue),
    Method(
        "seed-supervised",
        "similarities within a batch and its classes, then cross-entropy",
        SupervisedSEEDSettings,
        supervised,
    ),
)
