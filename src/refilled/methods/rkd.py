"""Relational knowledge distillation, for any classes: distances and angles of the teacher's embedding.

Park, Kim, Lu, Cho: Relational Knowledge Distillation, 2019. The weights, 25 for the distances and 50 for the
angles, are the defaults of the authors' code for CIFAR (run_distill_classification.py in lenscloth/RKD). It
has cross-entropy and plain distillation in the same loss, and normalises embeddings to length 1; we take
them as they are, as the authors do for metric learning and as re-implementations do throughout.

Two stages, so that it compares with refilled-emb: the embedding learns the relations alone, then the whole
student is trained with cross-entropy. Without a share of the epochs for the first there is one stage with
both, as in the paper's classification and in public comparisons (HobbitLong/RepDistiller).
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

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
    """Share of the epochs that goes to the first stage; 0: one stage, relations beside cross-entropy."""

    def __post_init__(self) -> None:
        check_number("distance_weight", self.distance_weight, least=0)
        check_number("angle_weight", self.angle_weight, least=0)
        check_number("embedding_share", self.embedding_share, least=0, below=1)


def stages(
    teacher: Network, student: Network, train: Batches, settings: RKDSettings, epochs: int
) -> list[Stage]:
    """The relations between embeddings, then cross-entropy; or both at once."""

    def relations(student_z: Tensor, batch: Batch) -> dict[str, Tensor]:
        teacher_z = embed(teacher, batch)
        return {
            "distance": settings.distance_weight * objectives.rkd_distance(student_z, teacher_z),
            "angle": settings.angle_weight * objectives.rkd_angle(student_z, teacher_z),
        }

    def both(batch: Batch) -> dict[str, Tensor]:
        embeddings, logits = student(batch.images)
        return {
            "cross_entropy": F.cross_entropy(logits.float(), batch.labels),
            **relations(embeddings, batch),
        }

    def alone(batch: Batch) -> dict[str, Tensor]:
        return relations(student.embed(batch.images), batch)

    if settings.embedding_share == 0:
        return [Stage("joint", epochs, list(student.parameters()), both, asks=teacher)]
    first, second = share(epochs, settings.embedding_share)
    embedding = Stage(
        "embedding", first, student.backbone_parameters(), alone, judge="embedding", asks=teacher
    )
    return [embedding, cross_entropy_stage(student, second)]


METHOD = Method(
    "rkd", "distances and angles of the embedding, then cross-entropy", RKDSettings, stages, keeps=True
)
