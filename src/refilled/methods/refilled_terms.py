"""The two terms of ReFilled: comparison matching (Section 4.2) and local distillation (Section 4.3)."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from refilled import objectives
from refilled.data import Batches
from refilled.errors import UserError
from refilled.methods.refilled_settings import ClassifierSettings, ComparisonSettings, Posterior
from refilled.methods.stage import embed
from refilled.models import Network

_COSINE_SCALE = 20.0
_LENGTH_SCALE = 10.0


def comparison_term(
    student_z: Tensor, teacher_z: Tensor, labels: Tensor, settings: ComparisonSettings
) -> Tensor:
    """Section 4.2, Equations 4 and 5: how the teacher compares the tuples that the student puts forward."""
    return settings.comparison_scale * objectives.comparison_matching(
        student_z, teacher_z, labels,
        tau_student=settings.comparison_tau_student, tau_teacher=settings.comparison_tau_teacher,
        margin=settings.margin, max_impostors=settings.max_impostors,
    )  # fmt: skip


def centre_scores(teacher_z: Tensor, centres: Tensor, length: Tensor, posterior: Posterior) -> Tensor:
    """Section 4.3, Equation 7: the teacher's scores [B, C] for the student's classes.

    Args:
        teacher_z: [B, d].
        centres: of the classes, [C, d].
        length: mean length of the teacher's embeddings of training images, a scalar.
        posterior: see :class:`ClassifierSettings`.
    """
    if posterior == "cosine":
        teacher_z = _COSINE_SCALE * F.normalize(teacher_z.float(), dim=1)
    if posterior == "scaled":
        teacher_z = _LENGTH_SCALE / length.clamp(min=1e-6) * teacher_z.float()
    scores = objectives.class_scores(teacher_z, centres)
    return objectives.class_posterior(scores) if posterior == "literal" else scores


def image_weights(
    logits: Tensor,
    scores: Tensor,
    labels: Tensor,
    settings: ClassifierSettings,
    head_logits: Callable[[], Tensor],
) -> Tensor | None:
    """Section 4.3, Equation 9: λ_i / λ [B], how far each image trusts the teacher, or None for no weights.

    Args:
        logits: the student's, [B, C].
        scores: the teacher's for the same classes, [B, C].
        labels: int64 [B].
        settings: which weights, and temperatures.
        head_logits: the teacher's own logits [B, its classes], asked for only where they are needed.
    """
    if settings.weight == "head":
        return objectives.confidence_weights(head_logits(), min_max=True)
    if settings.weight == "pl":
        return objectives.confidence_weights(scores, labels, tau=settings.tau_teacher)
    if settings.weight == "gap":
        return objectives.gap_weights(
            logits.detach(),
            scores,
            labels,
            tau_student=settings.tau_student,
            tau_teacher=settings.tau_teacher,
        )
    return None


class ClassifierTerm:
    """Section 4.3: the teacher's class centres over the target task, and the weighted local KD to them.

    Args:
        teacher: frozen, in evaluation mode.
        train: the target task's training images; the centres are those of the images as they are.
        num_classes: of the target task.
        settings: of stage 2.
    """

    def __init__(self, teacher: Network, train: Batches, num_classes: int, settings: ClassifierSettings):
        if settings.weight == "head" and not teacher.has_head:
            raise UserError(
                f"weight=head asks how sure the teacher's classifier is, and {teacher.spec} has none; use "
                f"weight=pl (--set weight=pl), which asks its class centres"
            )
        self.teacher, self.settings = teacher, settings
        embeddings = torch.cat([embed(teacher, batch).float() for batch in train.ordered(256)])
        self.centres = objectives.class_centres(embeddings, train.labels, num_classes)
        self.length = embeddings.norm(dim=1).mean()
        if settings.posterior == "literal" and bool((self.centres < 0).any()):
            raise UserError(
                f"posterior=literal divides by a sum of scores and needs embeddings that are never negative; "
                f"some of {teacher.spec}'s are. Use posterior=dot"
            )

    def scores(self, teacher_z: Tensor) -> Tensor:
        """Equation 7: the teacher's scores [B, C] for the student's classes."""
        return centre_scores(teacher_z, self.centres, self.length, self.settings.posterior)

    def weights(self, logits: Tensor, teacher_z: Tensor, scores: Tensor, labels: Tensor) -> Tensor | None:
        """Equation 9: λ_i / λ [B], or None for no weights."""
        return image_weights(logits, scores, labels, self.settings, lambda: self.teacher.classify(teacher_z))

    def __call__(self, logits: Tensor, teacher_z: Tensor, labels: Tensor) -> Tensor:
        """Equation 10, second term: λ times the batch's mean of (λ_i / λ) KL(teacher || student)."""
        settings = self.settings
        with torch.no_grad():
            scores = self.scores(teacher_z)
            weights = self.weights(logits, teacher_z, scores, labels)
        return settings.strength * objectives.local_kd(
            logits, scores, labels,
            tau_student=settings.tau_student, tau_teacher=settings.tau_teacher, weights=weights,
        )  # fmt: skip
