"""Relational knowledge distillation, for any classes: distances and angles of the teacher's embedding.

Park, Kim, Lu, Cho: Relational Knowledge Distillation, 2019. The weights, 25 for the distances and 50 for the
angles, are the defaults of the authors' code for CIFAR (run_distill_classification.py in lenscloth/RKD). It
has cross-entropy and plain distillation in the same loss, and normalises embeddings to length 1; we take
them as they are, as the authors do for metric learning and as re-implementations do throughout.

Two stages, so that it compares with refilled-emb: the embedding learns the relations alone, then the whole
student is trained with cross-entropy.
"""

from dataclasses import dataclass

from torch import Tensor

from refilled import objectives
from refilled.checks import check_number
from refilled.data import Batch, Batches
from refilled.methods.alone import cross_entropy_stage
from refilled.methods.stage import Method, Stage, embed, share
from refilled.models import Network


@dataclass(frozen=True)
class RKDSettings:
    """Settings of relational distillation."""

    distance_weight: float = 25.0
    """Weight of the distance-wise loss."""
    angle_weight: float = 50.0
    """Weight of the angle-wise loss."""
    embedding_share: float = 0.5
    """Share of the epochs that goes to the first stage."""

    def __post_init__(self) -> None:
        check_number("distance_weight", self.distance_weight, least=0)
        check_number("angle_weight", self.angle_weight, least=0)
        check_number("embedding_share", self.embedding_share, above=0, below=1)


def stages(
    teacher: Network, student: Network, train: Batches, settings: RKDSettings, epochs: int
) -> list[Stage]:
    """The relations between embeddings, then cross-entropy."""
    first, second = share(epochs, settings.embedding_share)

    def loss(batch: Batch) -> dict[str, Tensor]:
        student_z, teacher_z = student.embed(batch.images), embed(teacher, batch)
        return {
            "distance": settings.distance_weight * objectives.rkd_distance(student_z, teacher_z),
            "angle": settings.angle_weight * objectives.rkd_angle(student_z, teacher_z),
        }

    relations = Stage(
        "embedding", first, student.backbone_parameters(), loss, judge="embedding", asks=teacher
    )
    return [relations, cross_entropy_stage(student, second)]


METHOD = Method(
    "rkd", "distances and angles of the embedding, then cross-entropy", RKDSettings, stages, keeps=True
)
