"""Jacobian matching, for any classes: the student reacts to the same pixels as the teacher.

Srinivas, Fleuret: Knowledge Transfer with Jacobian Matching, 2018: cross-entropy + weight times the squared
distance of Jacobians of length 1. All Jacobians of a map would cost a backward pass for each of its
positions; the paper's way out, and ours, is one position: that of the largest attention (the mean of the
squares over the channels). We take the last maps, and the teacher's largest position for both networks. So a
step costs a backward pass to the pixels for each network, and the student is differentiated twice.

Attention needs no classes; where the classes are the same, the Jacobian of a logit could be matched as well,
which is left out here. The weight of 1 is ours: the term starts near 2, about as large as a cross-entropy,
and cannot exceed 4. A public re-implementation has 20 for a mean over pixels, which is far less.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from refilled import objectives
from refilled.checks import check_number
from refilled.data import Batch, Batches
from refilled.methods.feature_pairs import after_activation, maps_for
from refilled.methods.stage import Method, Stage
from refilled.models import Network


@dataclass(frozen=True)
class JacobianSettings:
    """The loss is cross-entropy + weight times the distance of the Jacobians."""

    weight: float = 1.0
    """Weight of the Jacobians."""

    def __post_init__(self) -> None:
        check_number("weight", self.weight, least=0)


def stages(
    teacher: Network, student: Network, train: Batches, settings: JacobianSettings, epochs: int
) -> list[Stage]:
    """One stage: cross-entropy and the Jacobians of the largest attention."""

    def loss(batch: Batch) -> dict[str, Tensor]:
        images = batch.images.detach().requires_grad_()
        maps, embeddings = after_activation(student, images)
        wanted = teacher.features(images)
        ours, theirs = objectives.most_attended(maps[-1], wanted[-1])
        distance = objectives.jacobian_matching(
            objectives.input_gradients(ours, images, differentiable=True),
            objectives.input_gradients(theirs, images),
        )
        logits = student.classify(embeddings)
        return {
            "cross_entropy": F.cross_entropy(logits.float(), batch.labels),
            "jacobian": settings.weight * distance,
        }

    return [Stage("classifier", epochs, list(student.parameters()), loss)]


METHOD = Method(
    "jacobian",
    "cross-entropy and which pixels the teacher reacts to",
    JacobianSettings,
    stages,
    fits=maps_for("jacobian"),
)
