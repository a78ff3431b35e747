"""Contrastive representation distillation, for any classes.

Tian, Krishnan, Isola: Contrastive Representation Distillation, 2020: cross-entropy + beta times Equation 18,
once with the student's embeddings against a memory of the teacher's, once the other way round. All defaults
are those of the authors' code (HobbitLong/RepDistiller) for CIFAR-100: 128 dimensions, 16,384 negatives,
temperature 0.07, memory's momentum 0.5, weight 0.8. Both projections are trained.

Negatives are images of other classes, drawn for each image and step. The authors draw without replacement
where there are enough; we draw with replacement, as noise-contrastive estimation has it, and never more than
the smallest number of images of other classes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from refilled import objectives
from refilled.checks import check_number
from refilled.data import Batch, Batches
from refilled.data.randomness import counted
from refilled.errors import UserError
from refilled.methods.fresh import fresh
from refilled.methods.stage import Method, Stage, embed
from refilled.models import Network


@dataclass(frozen=True)
class CRDSettings:
    """The loss is cross-entropy + weight times the contrast in both directions."""

    weight: float = 0.8
    """Weight of the contrast, the paper's beta."""
    dim: int = 128
    """Length of the projected embeddings."""
    negatives: int = 16384
    """Negatives of each image; never more than there are images of other classes."""
    tau: float = 0.07
    """Temperature."""
    memory_momentum: float = 0.5
    """Share of what the memory holds that stays when an image is seen again."""

    def __post_init__(self) -> None:
        check_number("weight", self.weight, least=0)
        check_number("dim", self.dim, least=1)
        check_number("negatives", self.negatives, least=1)
        check_number("tau", self.tau, above=0)
        check_number("memory_momentum", self.memory_momentum, least=0, below=1)


class Memory(nn.Module):
    """Projections of both networks' embeddings, and a memory of the last projection of every image.

    Args:
        student_dim: length of the student's embeddings.
        teacher_dim: length of the teacher's.
        images: number of training images.
        dim: length of what is remembered.
    """

    of_student: Tensor
    of_teacher: Tensor
    log_z: Tensor
    drawn: Tensor

    def __init__(self, student_dim: int, teacher_dim: int, images: int, dim: int):
        super().__init__()
        self.student, self.teacher = nn.Linear(student_dim, dim), nn.Linear(teacher_dim, dim)
        for name in ("of_student", "of_teacher"):
            self.register_buffer(name, objectives.unit_rows(torch.rand(images, dim) * 2 - 1))
        # The constants of both directions are estimated once, in the first step, as in the authors' code.
        self.register_buffer("log_z", torch.full((2,), torch.nan))
        self.register_buffer("drawn", torch.randint(2**62, ()))  # where it begins to count

    @torch.no_grad()
    def random(self, images: int, count: int) -> Tensor:
        """Random numbers [images, count], others every time."""
        numbers = counted(self.drawn, (images, count))
        self.drawn += images * count
        return numbers

    @torch.no_grad()
    def remember(self, memory: Tensor, rows: Tensor, seen: Tensor, momentum: float) -> None:
        """Move what a memory [N, dim] holds of some rows [B] towards what was seen of them now [B, dim]."""
        mixed = momentum * memory[rows] + (1 - momentum) * objectives.unit_rows(seen.float())
        memory.index_copy_(0, rows, objectives.unit_rows(mixed))


def stages(
    teacher: Network, student: Network, train: Batches, settings: CRDSettings, epochs: int
) -> list[Stage]:
    """One stage: cross-entropy and the contrast."""
    images = len(train.labels)
    order = objectives.rows_by_class(train.labels, len(student.classes))
    fewest_others = images - int(order[2].max())
    if fewest_others == 0:
        raise UserError("crd needs training images of at least 2 classes: negatives are images of others")
    count = min(settings.negatives, fewest_others)
    memory = fresh(train, lambda: Memory(student.dim, teacher.dim, images, settings.dim))

    def contrast(anchors: Tensor, others: Tensor, candidates: Tensor, log_z: Tensor) -> Tensor:
        """One direction: anchors against what is remembered of the other network."""
        scores = objectives.memory_scores(anchors, others, candidates, tau=settings.tau)
        with torch.no_grad():
            log_z.copy_(torch.where(log_z.isnan(), objectives.log_partition(scores, images), log_z))
        return settings.weight * objectives.noise_contrast(scores, log_z, images)

    def loss(batch: Batch) -> dict[str, Tensor]:
        embeddings, logits = student(batch.images)
        of_student, of_teacher = memory.student(embeddings), memory.teacher(embed(teacher, batch))
        negatives = objectives.draw_others(batch.labels, *order, memory.random(len(batch), count))
        candidates = torch.cat([batch.rows[:, None], negatives], dim=1)
        terms = {
            "cross_entropy": F.cross_entropy(logits.float(), batch.labels),
            "student": contrast(of_student, memory.of_teacher, candidates, memory.log_z[0]),
            "teacher": contrast(of_teacher, memory.of_student, candidates, memory.log_z[1]),
        }
        memory.remember(memory.of_student, batch.rows, of_student, settings.memory_momentum)
        memory.remember(memory.of_teacher, batch.rows, of_teacher, settings.memory_momentum)
        return terms

    trained = [*student.parameters(), *memory.parameters()]
    return [Stage("classifier", epochs, trained, loss, asks=teacher, beside=memory)]


METHOD = Method("crd", "cross-entropy and contrast with a memory of all images", CRDSettings, stages)
