"""ReFilled: relationship matching across label spaces.

Ye, Lu, Zhan: Generalized Knowledge Distillation via Relationship Matching. Two stages: the student's
embedding learns to compare instances as the teacher does (Section 4.2); then its classifier is matched
to a class-centre classifier in the teacher's embedding, locally and weighted by trust (Section 4.3).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from refilled import objectives
from refilled.checks import check_choices, check_number
from refilled.data import Batch, Batches
from refilled.errors import UserError
from refilled.methods.alone import cross_entropy_stage
from refilled.methods.stage import Method, Stage
from refilled.models import Network
from refilled.objectives.comparison import SMALLEST_TAU

Posterior = Literal["dot", "cosine", "literal"]
Weight = Literal["head", "pl", "gap", "none"]


@dataclass(frozen=True)
class RefilledSettings:
    """Settings of ReFilled; the defaults are those that measured best so far."""

    embedding_share: float = 0.5
    """Share of the epochs that goes to the first stage."""
    comparison_tau_teacher: float = 0.1
    """Stage 1: temperature of the teacher's comparisons."""
    comparison_tau_student: float = 0.1
    """Stage 1: temperature of the student's comparisons."""
    comparison_scale: float = 1.0
    """Stage 1: factor of the loss."""
    margin: float | None = None
    """Stage 1: upper bound on an impostor's distance beyond the positive's; None: none."""
    max_impostors: int | None = None
    """Stage 1: most impostors of a tuple; None: all."""
    strength: float = 2.0
    """Stage 2: lambda, the weight of the teacher's term."""
    tau_teacher: float = 2.0
    """Stage 2: temperature of the teacher's scores."""
    tau_student: float = 1.0
    """Stage 2: temperature of the student's logits in the teacher's term."""
    posterior: Posterior = "dot"
    """Stage 2: scores of the class centres: dot products, cosines, or the paper's literal posterior."""
    weight: Weight = "head"
    """Stage 2: trust in the teacher per image: its own head's confidence, that of the class centres
    (pl), its agreement with the student (gap), or none."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_number("embedding_share", self.embedding_share, above=0, below=1)
        check_number("comparison_tau_teacher", self.comparison_tau_teacher, above=SMALLEST_TAU)
        check_number("comparison_tau_student", self.comparison_tau_student, above=SMALLEST_TAU)
        check_number("comparison_scale", self.comparison_scale, above=0)
        check_number("margin", self.margin, above=0)
        check_number("max_impostors", self.max_impostors, least=1)
        check_number("strength", self.strength, least=0)
        check_number("tau_teacher", self.tau_teacher, above=0)
        check_number("tau_student", self.tau_student, above=0)


@dataclass(frozen=True)
class PaperSettings(RefilledSettings):
    """The paper's own settings for generalized distillation, to the letter."""

    comparison_tau_teacher: float = 2.0
    comparison_tau_student: float = 1.0
    posterior: Posterior = "literal"
    weight: Weight = "pl"


@dataclass(frozen=True)
class AuthorsSettings(RefilledSettings):
    """What the authors' published code does instead."""

    comparison_tau_teacher: float = 4.0
    comparison_tau_student: float = 4.0
    comparison_scale: float = 1000.0
    margin: float | None = 0.2
    strength: float = 1.0
    tau_teacher: float = 1.0


# --- the two terms ------------------------------------------------------------------------------------


def comparison_term(
    student_z: Tensor, teacher_z: Tensor, labels: Tensor, settings: RefilledSettings
) -> Tensor:
    """Section 4.2: how the teacher compares the tuples that the student puts forward."""
    return settings.comparison_scale * objectives.comparison_matching(
        student_z, teacher_z, labels,
        tau_student=settings.comparison_tau_student, tau_teacher=settings.comparison_tau_teacher,
        margin=settings.margin, max_impostors=settings.max_impostors,
    )  # fmt: skip


class ClassifierTerm:
    """Section 4.3: the teacher's class centres over the target task, and the weighted local KD to them."""

    def __init__(self, teacher: Network, train: Batches, num_classes: int, settings: RefilledSettings):
        self.teacher, self.settings = teacher, settings
        with torch.no_grad():
            embeddings = torch.cat([teacher.embed(batch.images).float() for batch in train.ordered(256)])
        self.centres = objectives.class_centres(embeddings, train.labels, num_classes)

    def scores(self, teacher_z: Tensor) -> Tensor:
        """The teacher's scores [B, C] for the student's classes."""
        if self.settings.posterior == "cosine":
            teacher_z = F.normalize(teacher_z.float(), dim=1)
        scores = objectives.class_scores(teacher_z, self.centres)
        return objectives.class_posterior(scores) if self.settings.posterior == "literal" else scores

    def weights(self, logits: Tensor, teacher_z: Tensor, scores: Tensor, labels: Tensor) -> Tensor | None:
        """λ_i / λ [B], or None for no weights."""
        settings = self.settings
        if settings.weight == "head":
            return objectives.confidence_weights(self.teacher.classify(teacher_z), min_max=True)
        if settings.weight == "pl":
            return objectives.confidence_weights(scores, labels, tau=settings.tau_teacher)
        if settings.weight == "gap":
            return objectives.gap_weights(
                logits, scores, labels, tau_student=settings.tau_student, tau_teacher=settings.tau_teacher
            )
        return None

    def __call__(self, logits: Tensor, teacher_z: Tensor, labels: Tensor) -> Tensor:
        """λ times the mean over the batch of (λ_i / λ) KL(teacher || student) over its classes."""
        settings = self.settings
        with torch.no_grad():
            scores = self.scores(teacher_z)
            weights = self.weights(logits, teacher_z, scores, labels)
        return settings.strength * objectives.local_kd(
            logits, scores, labels,
            tau_student=settings.tau_student, tau_teacher=settings.tau_teacher, weights=weights,
        )  # fmt: skip


# --- the stages ---------------------------------------------------------------------------------------


def embedding_stage(teacher: Network, student: Network, settings: RefilledSettings, epochs: int) -> Stage:
    """Stage 1: match comparisons; the head is not touched."""

    def loss(batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            teacher_z = teacher.embed(batch.images)
        return {"comparison": comparison_term(student.embed(batch.images), teacher_z, batch.labels, settings)}

    return Stage("embedding", epochs, student.backbone_parameters(), loss, judge="embedding")


def classifier_stage(
    teacher: Network, student: Network, train: Batches, settings: RefilledSettings, epochs: int
) -> Stage:
    """Stage 2: cross-entropy and the weighted local distillation."""
    term = ClassifierTerm(teacher, train, len(student.classes), settings)

    def loss(batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            teacher_z = teacher.embed(batch.images)
        _, logits = student(batch.images)
        return {
            "cross_entropy": F.cross_entropy(logits.float(), batch.labels),
            "local_kd": term(logits, teacher_z, batch.labels),
        }

    return Stage("classifier", epochs, list(student.parameters()), loss)


def joint_stage(
    teacher: Network, student: Network, train: Batches, settings: RefilledSettings, epochs: int
) -> Stage:
    """ReFilled-gamma: all three terms at once."""
    term = ClassifierTerm(teacher, train, len(student.classes), settings)

    def loss(batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            teacher_z = teacher.embed(batch.images)
        student_z, logits = student(batch.images)
        return {
            "cross_entropy": F.cross_entropy(logits.float(), batch.labels),
            "local_kd": term(logits, teacher_z, batch.labels),
            "comparison": comparison_term(student_z, teacher_z, batch.labels, settings),
        }

    return Stage("joint", epochs, list(student.parameters()), loss)


# --- the method and its variants ----------------------------------------------------------------------


def two_stages(
    teacher: Network, student: Network, train: Batches, settings: RefilledSettings, epochs: int
) -> list[Stage]:
    """Algorithm 1: the embedding, then the classifier."""
    first, second = share(epochs, settings.embedding_share)
    return [
        embedding_stage(teacher, student, settings, first),
        classifier_stage(teacher, student, train, settings, second),
    ]


def share(epochs: int, first_share: float) -> tuple[int, int]:
    """Epochs of two stages; each gets at least one."""
    if epochs < 2:
        raise UserError(f"a method of two stages needs at least 2 epochs, not {epochs}")
    first = min(max(1, round(epochs * first_share)), epochs - 1)
    return first, epochs - first


def _embedding_only(
    teacher: Network, student: Network, train: Batches, settings: RefilledSettings, epochs: int
) -> list[Stage]:
    first, second = share(epochs, settings.embedding_share)
    return [embedding_stage(teacher, student, settings, first), cross_entropy_stage(student, second)]


def _classifier_only(
    teacher: Network, student: Network, train: Batches, settings: RefilledSettings, epochs: int
) -> list[Stage]:
    return [classifier_stage(teacher, student, train, settings, epochs)]


def _joint(
    teacher: Network, student: Network, train: Batches, settings: RefilledSettings, epochs: int
) -> list[Stage]:
    return [joint_stage(teacher, student, train, settings, epochs)]


@dataclass(frozen=True)
class MinusSettings(RefilledSettings):
    """ReFilled without weights per image."""

    weight: Weight = "none"


METHODS = (
    Method("refilled", "both stages, with the settings that measured best", RefilledSettings, two_stages),
    Method("refilled-emb", "stage 1, then cross-entropy", RefilledSettings, _embedding_only),
    Method("refilled-lkd", "stage 2 alone, from scratch", RefilledSettings, _classifier_only),
    Method("refilled-minus", "both stages, no weight per image", MinusSettings, two_stages),
    Method("refilled-gamma", "one stage with all terms at once", RefilledSettings, _joint),
    Method("refilled-paper", "both stages, settings of the paper", PaperSettings, two_stages),
    Method("refilled-authors", "both stages, settings of the authors' code", AuthorsSettings, two_stages),
)
