"""ReFilled: relationship matching across label spaces.

Ye, Lu, Zhan: Generalized Knowledge Distillation via Relationship Matching. Two stages: the student's
embedding learns to compare instances as the teacher does (Section 4.2); then its classifier is matched
to a class-centre classifier in the teacher's embedding, locally and weighted by trust (Section 4.3).
Beyond the paper, the student may imitate the teacher's embedding in both stages, also of images that have no
labels; in the second the teacher's own head may speak, and its terms may fade away; and mixtures of images
may be seen beside them.
"""

import json
from dataclasses import fields

from torch import Tensor, nn
from torch.nn import functional as F

from refilled.data import Batch, Batches
from refilled.methods import kd
from refilled.methods.alone import cross_entropy_stage
from refilled.methods.imitation import Imitation, imitation
from refilled.methods.mixtures import show
from refilled.methods.refilled_settings import (
    AuthorsSettings,
    ClassifierSettings,
    ComparisonSettings,
    EmbeddingFirstSettings,
    EmbeddingThenKDSettings,
    FewSettings,
    JointSettings,
    MinusSettings,
    PaperSettings,
    RefilledSettings,
    TwoStageSettings,
)
from refilled.methods.refilled_terms import ClassifierTerm, comparison_term
from refilled.methods.shared_head import SharedHead, shared_head
from refilled.methods.stage import Method, Stage, embed, share
from refilled.models import Network

# --- the stages ---------------------------------------------------------------------------------------


def embedding_stage(
    teacher: Network,
    student: Network,
    settings: ComparisonSettings,
    epochs: int,
    imitate: Imitation | None = None,
    mixtures: bool = False,
) -> Stage:
    """Stage 1: match comparisons, perhaps imitate, mixtures too; the head is not touched."""

    def loss(batch: Batch) -> dict[str, Tensor]:
        seen, count = show(batch, mixtures and imitate is not None), len(batch)
        student_z, teacher_z = student.embed(seen.images), seen.teacher_embeddings(teacher, batch)
        compared = comparison_term(student_z[:count], teacher_z[:count], batch.labels, settings)
        terms = {"comparison": compared}
        if imitate is not None:
            terms["imitation"] = imitate(student_z, teacher_z, seen)
        return terms

    trained = [*student.backbone_parameters(), *_parameters(imitate)]
    recipe = json.dumps(
        [
            {each.name: getattr(settings, each.name) for each in fields(ComparisonSettings)},
            imitate.recipe if imitate is not None else None,
            mixtures,
        ]
    )
    return Stage(
        "embedding", epochs, trained, loss, judge="embedding", asks=teacher, beside=imitate, recipe=recipe,
        group=settings.group or 1,
    )  # fmt: skip


def classifier_stage(
    teacher: Network,
    student: Network,
    train: Batches,
    settings: ClassifierSettings,
    epochs: int,
    imitate: Imitation | None = None,
    fade: float = 0.0,
    mixtures: bool = False,
    head: SharedHead | None = None,
) -> Stage:
    """Stage 2: cross-entropy and, if it has any strength, the weighted local distillation of images; perhaps
    the student goes on to imitate, mixtures are seen too, the teacher's head speaks of shared classes,
    and the teacher's terms fade, the head's at a pace of its own."""
    term = ClassifierTerm(teacher, train, len(student.classes), settings) if settings.strength else None
    of_all = imitate is not None or head is not None

    def loss(batch: Batch) -> dict[str, Tensor]:
        seen, count = show(batch, mixtures), len(batch)
        teacher_z = seen.teacher_embeddings(teacher, batch) if of_all else embed(teacher, batch)
        student_z, logits = student(seen.images)
        left = _left(batch, fade)
        heard = left if head is None else _left(batch, head.fade)
        labels = 1.0 if head is None else 1 - heard * head.instead
        terms = {"cross_entropy": labels * seen.cross_entropy(logits)}
        if term is not None:
            terms["local_kd"] = left * term(logits[:count], teacher_z[:count], batch.labels)
        if imitate is not None:
            terms["imitation"] = left * imitate(student_z, teacher_z, seen)
        if head is not None:
            terms["head"] = heard * head(logits, teacher_z, seen)
        return terms

    trained = [*student.parameters(), *_parameters(imitate)]
    return Stage("classifier", epochs, trained, loss, asks=teacher, beside=imitate)


def _left(batch: Batch, fade: float) -> Tensor | float:
    """What is left of a term's weight that loses this share of it over the stage."""
    return 1.0 if batch.progress is None else 1 - fade * batch.progress


def _parameters(imitate: Imitation | None) -> list[nn.Parameter]:
    return [] if imitate is None else list(imitate.parameters())


def joint_stage(
    teacher: Network, student: Network, train: Batches, settings: JointSettings, epochs: int
) -> Stage:
    """ReFilled-gamma: all three terms at once."""
    term = ClassifierTerm(teacher, train, len(student.classes), settings)

    def loss(batch: Batch) -> dict[str, Tensor]:
        teacher_z = embed(teacher, batch)
        student_z, logits = student(batch.images)
        return {
            "cross_entropy": F.cross_entropy(logits.float(), batch.labels),
            "local_kd": term(logits, teacher_z, batch.labels),
            "comparison": comparison_term(student_z, teacher_z, batch.labels, settings),
        }

    return Stage("joint", epochs, list(student.parameters()), loss, asks=teacher, group=settings.group or 1)


# --- the method and its variants ----------------------------------------------------------------------


def two_stages(
    teacher: Network, student: Network, train: Batches, settings: RefilledSettings, epochs: int
) -> list[Stage]:
    """Algorithm 1: the embedding, then the classifier; or the classifier alone, if that has all epochs."""
    weights = settings.imitation, settings.imitation_new, settings.imitation_unlabelled
    imitate = imitation(teacher, student, train, *weights)
    first, second = share(epochs, settings.embedding_share) if settings.embedding_share else (0, epochs)
    mixtures, head = settings.mixtures, shared_head(teacher, student, train, settings)
    last = classifier_stage(teacher, student, train, settings, second, imitate, settings.fade, mixtures, head)
    return [embedding_stage(teacher, student, settings, first, imitate, mixtures), last] if first else [last]


def _embedding_only(
    teacher: Network, student: Network, train: Batches, settings: EmbeddingFirstSettings, epochs: int
) -> list[Stage]:
    first, second = share(epochs, settings.embedding_share)
    return [embedding_stage(teacher, student, settings, first), cross_entropy_stage(student, second)]


def _comparison_only(
    teacher: Network, student: Network, train: Batches, settings: ComparisonSettings, epochs: int
) -> list[Stage]:
    return [embedding_stage(teacher, student, settings, epochs)]


def _embedding_then_kd(
    teacher: Network, student: Network, train: Batches, settings: EmbeddingThenKDSettings, epochs: int
) -> list[Stage]:
    first, second = share(epochs, settings.embedding_share)
    return [
        embedding_stage(teacher, student, settings, first),
        *kd.stages(teacher, student, train, settings, second),
    ]


def _classifier_only(
    teacher: Network, student: Network, train: Batches, settings: ClassifierSettings, epochs: int
) -> list[Stage]:
    return [classifier_stage(teacher, student, train, settings, epochs)]


def _joint(
    teacher: Network, student: Network, train: Batches, settings: JointSettings, epochs: int
) -> list[Stage]:
    return [joint_stage(teacher, student, train, settings, epochs)]


METHODS = (
    Method(
        "refilled",
        "what measured best: a short first stage, then cross-entropy; the teacher is imitated less and less",
        RefilledSettings,
        two_stages,
        keeps=True,
        unlabelled=True,
    ),
    Method(
        "refilled-few",
        "for few images of a class: the classifier's stage alone, with imitation of the teacher's embedding",
        FewSettings,
        two_stages,
        keeps=True,
        unlabelled=True,
    ),
    Method(
        "refilled-two-stages",
        "the paper's two stages and nothing else, with the settings that measured best",
        TwoStageSettings,
        two_stages,
        keeps=True,
        unlabelled=True,
    ),
    Method(
        "refilled-emb",
        "stage 1, then cross-entropy",
        EmbeddingFirstSettings,
        _embedding_only,
        keeps=True,
    ),
    Method(
        "refilled-stage1",
        "stage 1 alone: the head stays untrained, the embedding is what counts",
        ComparisonSettings,
        _comparison_only,
    ),
    Method(
        "refilled-kd",
        "stage 1, then plain distillation of logits; same classes only",
        EmbeddingThenKDSettings,
        _embedding_then_kd,
        same_classes=True,
    ),
    Method("refilled-lkd", "stage 2 alone, from scratch", ClassifierSettings, _classifier_only, keeps=True),
    Method(
        "refilled-minus",
        "both stages, no weight per image",
        MinusSettings,
        two_stages,
        keeps=True,
        unlabelled=True,
    ),
    Method("refilled-gamma", "one stage with all terms at once", JointSettings, _joint, keeps=True),
    Method(
        "refilled-paper",
        "both stages, settings of the paper",
        PaperSettings,
        two_stages,
        keeps=True,
        unlabelled=True,
    ),
    Method(
        "refilled-authors",
        "both stages, settings of the authors' code",
        AuthorsSettings,
        two_stages,
        keeps=True,
        unlabelled=True,
    ),
)
