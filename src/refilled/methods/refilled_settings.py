"""Settings of ReFilled and its variants: each variant has those that do something in it, and no others."""

from dataclasses import dataclass
from typing import Literal

from refilled.checks import check_choices, check_number
from refilled.errors import UserError
from refilled.methods.kd import KDSettings
from refilled.objectives.comparison import SMALLEST_TAU

Posterior = Literal["dot", "scaled", "cosine", "literal"]
Weight = Literal["head", "pl", "gap", "none"]

_HEAD_SHARE = 0.9
"""Of cross-entropy, that the teacher's head takes the place of where it knows all classes."""


@dataclass(frozen=True)
class ComparisonSettings:
    """Stage 1, comparison matching."""

    comparison_tau_teacher: float = 0.1
    """Temperature of the teacher's comparisons."""
    comparison_tau_student: float = 0.1
    """Temperature of the student's comparisons."""
    comparison_scale: float = 1.0
    """Factor of the comparison term; in the joint loss of refilled-gamma this is the paper's gamma."""
    margin: float | None = None
    """Upper bound on an impostor's distance beyond the positive's; none: no bound."""
    max_impostors: int | None = None
    """Most impostors of a tuple; none: all."""
    group: int | None = None
    """Images of a class that come side by side where comparisons are learnt; none: as they are shuffled. In
    small batches of many classes two of one class seldom meet, and without them there is no tuple."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_number("comparison_tau_teacher", self.comparison_tau_teacher, above=SMALLEST_TAU)
        check_number("comparison_tau_student", self.comparison_tau_student, above=SMALLEST_TAU)
        check_number("comparison_scale", self.comparison_scale, above=0)
        check_number("margin", self.margin, above=0)
        check_number("max_impostors", self.max_impostors, least=1)
        check_number("group", self.group, least=2, whole=True)


@dataclass(frozen=True)
class ClassifierSettings:
    """Stage 2, weighted local distillation."""

    strength: float = 2.0
    """Lambda, the weight of the teacher's term."""
    tau_teacher: float = 2.0
    """Temperature of the teacher's scores, in the distillation term and in the pl and gap weights."""
    tau_student: float = 1.0
    """Temperature of the student's logits in the teacher's term."""
    posterior: Posterior = "dot"
    """Scores of the class centres: dot products; the same, scaled so that the teacher's embeddings have a
    mean length of 10, whichever teacher it is; cosines (times 20, so that the usual temperature of 2 makes
    them cosine / 0.1); or the paper's literal posterior."""
    weight: Weight = "head"
    """Trust in the teacher per image: its own head's confidence, that of the class centres (pl), its
    agreement with the student (gap), or none."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_number("strength", self.strength, least=0)
        check_number("tau_teacher", self.tau_teacher, above=0)
        check_number("tau_student", self.tau_student, above=0)


@dataclass(frozen=True)
class EmbeddingFirstSettings(ComparisonSettings):
    """Stage 1, and how long it takes: refilled-emb."""

    embedding_share: float = 0.5
    """Share of the epochs that goes to the first stage."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("embedding_share", self.embedding_share, above=0, below=1)


@dataclass(frozen=True)
class EmbeddingThenKDSettings(EmbeddingFirstSettings, KDSettings):
    """Stage 1, then plain distillation: refilled-kd."""

    def __post_init__(self) -> None:
        EmbeddingFirstSettings.__post_init__(self)
        KDSettings.__post_init__(self)


@dataclass(frozen=True)
class JointSettings(ComparisonSettings, ClassifierSettings):
    """Both terms at once: refilled-gamma."""

    def __post_init__(self) -> None:
        ComparisonSettings.__post_init__(self)
        ClassifierSettings.__post_init__(self)


@dataclass(frozen=True)
class RefilledSettings(ComparisonSettings, ClassifierSettings):
    """Both stages; the defaults are what measured best on validation images (results/recipes.md): a short
    first stage, imitation in both, which fades away in the second, and no local distillation. Where the
    teacher knows all classes its own head speaks too, in the safer of two forms."""

    strength: float = 0.0
    """Lambda, the weight of the teacher's term in the second stage. The paper has 2. 0: there is none, and
    tau_teacher, tau_student, posterior and weight, which are the term's, are refused."""
    embedding_share: float = 0.25
    """Share of the epochs that goes to the first stage; 0: there is none."""
    imitation: float = 5.0
    """Weight of imitation, in both stages: a linear map of the student's embedding points where the
    teacher's does. Not in the paper, which has 0: none."""
    imitation_new: float | None = None
    """The same for images of classes that the teacher does not know; none: as for the others."""
    imitation_unlabelled: float = 30.0
    """Weight of imitation of images without labels, if there are any (--unlabelled). Not in the paper."""
    head_same: float = 0.0
    """Weight of what the teacher's own head says in the second stage beside cross-entropy, where it knows all
    of the student's classes. Where it does not, there is no such term, and a weight that is asked for is
    refused. 4 was best with 50 classes and wide ResNets, but too much for 8 classes and small networks. Not
    in the paper: 0."""
    head_share: float | None = None
    """The same as a share of cross-entropy that it takes the place of, as in plain distillation, so that both
    together never weigh more than 1. None: 0.9, or 0 beside a head_same: they are two ways to weigh one term.
    Not in the paper: 0."""
    head_unlabelled: float = 0.0
    """Weight of what the teacher's own head says of images without labels (--unlabelled) in the second stage,
    over the classes that it shares with the student, as far as it takes an image to be of one. Not in the
    paper: 0."""
    head_tau: float = 4.0
    """Temperature of both networks where the teacher's head speaks; 4 is usual in plain distillation."""
    mixtures: bool = False
    """See as many mixtures as images: two images blended in a share that is drawn anew (mixup), for
    cross-entropy, with their labels blended alike, for imitation and for the teacher's head. The teacher is
    asked about them in every step. Not in the paper."""
    fade: float = 1.0
    """Share of the weight of all that the teacher says in the second stage that has faded away at its end,
    evenly. Not in the paper, which has 0: none."""
    head_fade: float | None = None
    """The same for what its own head says; none: as ``fade`` has it."""

    def __post_init__(self) -> None:
        ComparisonSettings.__post_init__(self)
        ClassifierSettings.__post_init__(self)
        check_number("embedding_share", self.embedding_share, least=0, below=1)
        check_number("imitation", self.imitation, least=0)
        check_number("imitation_new", self.imitation_new, least=0)
        check_number("imitation_unlabelled", self.imitation_unlabelled, least=0)
        check_number("head_same", self.head_same, least=0)
        if self.head_share is None:  # as its own class has it, unless the term is weighed otherwise
            usual = _HEAD_SHARE if type(self).head_share is None else type(self).head_share
            object.__setattr__(self, "head_share", 0.0 if self.head_same else usual)
        check_number("head_share", self.head_share, least=0, most=1)
        if self.head_same and self.head_share:
            raise UserError("head_same and head_share are two ways to weigh one term: give one of them")
        check_number("head_unlabelled", self.head_unlabelled, least=0)
        check_number("head_tau", self.head_tau, above=0)
        check_number("fade", self.fade, least=0, most=1)
        check_number("head_fade", self.head_fade, least=0, most=1)


@dataclass(frozen=True)
class TwoStageSettings(RefilledSettings):
    """The paper's two stages and nothing else, with what measured best of its settings
    (results/cifar100-first.md). Every value is spelt out, so that these, and what differs from them in some
    values below, stay what they are when a default changes."""

    embedding_share: float = 0.5
    comparison_tau_teacher: float = 0.1
    comparison_tau_student: float = 0.1
    comparison_scale: float = 1.0
    margin: float | None = None
    max_impostors: int | None = None
    group: int | None = None
    strength: float = 2.0
    tau_teacher: float = 2.0
    tau_student: float = 1.0
    posterior: Posterior = "dot"
    weight: Weight = "head"
    imitation: float = 0.0
    imitation_new: float | None = None
    imitation_unlabelled: float = 30.0
    head_same: float = 0.0
    head_share: float | None = 0.0
    head_unlabelled: float = 0.0
    head_tau: float = 4.0
    mixtures: bool = False
    fade: float = 0.0
    head_fade: float | None = None


@dataclass(frozen=True)
class MinusSettings(TwoStageSettings):
    """The two stages without weights per image."""

    weight: Weight = "none"


@dataclass(frozen=True)
class FewSettings(TwoStageSettings):
    """For few images of a class (results/few-images.md): no stage of comparisons, imitation instead."""

    embedding_share: float = 0.0
    imitation: float = 5.0
    strength: float = 1.0
    posterior: Posterior = "scaled"
    weight: Weight = "none"


@dataclass(frozen=True)
class TunedSettings(TwoStageSettings):
    """For few-shot tasks whose students start from a trained network as the nearest class mean
    (results/fewshot-choices.md): gentle local distillation alone. Both have one temperature, so that the
    teacher's cosines are compared with the student's logits, which start as cosines too."""

    embedding_share: float = 0.0
    strength: float = 0.5
    tau_student: float = 2.0
    posterior: Posterior = "cosine"
    weight: Weight = "none"


@dataclass(frozen=True)
class PaperSettings(TwoStageSettings):
    """The paper's own settings for generalized distillation."""

    comparison_tau_teacher: float = 2.0
    comparison_tau_student: float = 1.0
    posterior: Posterior = "literal"
    weight: Weight = "pl"


@dataclass(frozen=True)
class AuthorsSettings(TwoStageSettings):
    """What the authors' published code does instead.

    One thing is left out: their code cuts every tuple to the smallest number of impostors in the batch.
    """

    comparison_tau_teacher: float = 4.0
    comparison_tau_student: float = 4.0
    comparison_scale: float = 1000.0
    margin: float | None = 0.2
    strength: float = 1.0
    tau_teacher: float = 1.0
