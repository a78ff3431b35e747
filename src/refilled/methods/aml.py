"""Asymmetric metric learning, for any classes: the student's embedding among the teacher's.

Budnik, Avrithis: Asymmetric Metric Learning for Knowledge Transfer, 2021. Anchors are embedded by the
student, positives and negatives by the teacher. Margins (0.7 contrastive, 0.1 triplet) and the 5 hard
negatives of an anchor are the defaults of the authors' code (budnikm/aml), where their contrastive loss with
the anchor itself among the positives is called Contr+; where they mine negatives in the whole set, we take
the nearest in the batch.

Both embeddings must be of one dimension. The authors give the student a last layer of the teacher's
dimension; so do we where the dimensions differ, but only for this stage: a linear map beside the student.

Two stages, as Ye, Lu and Zhan compare with it: the embedding first, then the whole student is trained with
cross-entropy. They name no settings for it.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from refilled import objectives
from refilled.checks import check_choices, check_number
from refilled.data import Batch, Batches
from refilled.methods.alone import cross_entropy_stage
from refilled.methods.projection import projection
from refilled.methods.stage import Method, Stage, embed, share
from refilled.models import Network

_LOSSES = {
    "contrastive": (objectives.asymmetric_contrastive, 0.7),
    "triplet": (objectives.asymmetric_triplet, 0.1),
}


@dataclass(frozen=True)
class AMLSettings:
    """Settings of asymmetric metric learning."""

    loss: Literal["contrastive", "triplet"] = "contrastive"
    """What is asked of the distances: absolute margins, or margins between positives and negatives."""
    margin: float | None = None
    """Margin of the loss; none: 0.7 (contrastive) or 0.1 (triplet)."""
    negatives: int = 5
    """Nearest images of other classes that count for each image."""
    with_itself: bool = True
    """Whether an image's own embedding by the teacher is one of its positives."""
    embedding_share: float = 0.5
    """Share of the epochs that goes to the first stage."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_number("margin", self.margin, above=0)
        check_number("negatives", self.negatives, least=1)
        check_number("embedding_share", self.embedding_share, above=0, below=1)


def stages(
    teacher: Network, student: Network, train: Batches, settings: AMLSettings, epochs: int
) -> list[Stage]:
    """The asymmetric loss, then cross-entropy."""
    first, second = share(epochs, settings.embedding_share)
    objective, usual_margin = _LOSSES[settings.loss]
    margin = usual_margin if settings.margin is None else settings.margin
    project = projection(teacher, student, train)

    def loss(batch: Batch) -> dict[str, Tensor]:
        anchors = project(student.embed(batch.images))
        return {
            "asymmetric": objective(
                anchors, embed(teacher, batch), batch.labels,
                margin=margin, negatives=settings.negatives, with_itself=settings.with_itself,
            )
        }  # fmt: skip

    trained = [*student.backbone_parameters(), *project.parameters()]
    metric = Stage("embedding", first, trained, loss, judge="embedding", asks=teacher, beside=project)
    return [metric, cross_entropy_stage(student, second)]


METHOD = Method("aml", "asymmetric metric learning, then cross-entropy", AMLSettings, stages)
