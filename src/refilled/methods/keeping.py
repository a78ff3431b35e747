"""One-step incremental learning: the student learns its own classes and the teacher's, without their data.

Ye, Lu, Zhan, Section 5.3 (KD for one-step incremental learning). The head has a column for every class of
either. Columns of the student's own classes are trained by whatever method; those of the teacher's classes
learn from the teacher's predictions on the new images, as in Li and Hoiem, Learning without Forgetting, 2018.
Where a class is known to both it is one column, which learns from both.

The two groups of columns then have to be brought to one level. The paper drops biases and gives all class
weights one length (:func:`calibrate`). That is not enough for a classifier that was also matched to soft
targets, as ReFilled's is: its logits stay close together, and almost every image is taken for an old class.
:func:`level` compares how far the best logits of each group stand out instead.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from refilled import objectives
from refilled.data import Batch, Batches
from refilled.data.randomness import seeded_generator
from refilled.errors import UserError
from refilled.labels import LabelSpace, Overlap
from refilled.methods.refilled_settings import ClassifierSettings
from refilled.methods.stage import Method, Stage, embed
from refilled.models import Network
from refilled.models.wanted import EMBEDDINGS

_HALVES = 30
_OF_HALVES = 0x6C6576656C  # apart from the seeds of anything else


def all_classes(teacher: Network, own: LabelSpace) -> LabelSpace:
    """The teacher's classes, named and ordered as it has them, then those of the student that are new."""
    return LabelSpace([*teacher.classes, *teacher.classes.overlap(own).only_there])


def columns_of(classes: LabelSpace, own: LabelSpace) -> list[int]:
    """For each of the student's own classes, its place among all classes."""
    overlap: Overlap = classes.overlap(own)
    places = {there: here for here, there in overlap.pairs}
    return [places[label] for label in range(len(own))]


def check_keeping(method: Method, teacher: Network) -> None:
    """Refuse a method that cannot, and a teacher that has no classes to keep."""
    if not method.keeps:
        raise UserError(
            f"method {method.name} cannot keep the teacher's classes; use --method refilled, rkd or student"
        )
    if len(teacher.classes) < 2 or not teacher.has_head:
        raise UserError(
            f"teacher {teacher.spec} has no head whose classes could be kept; use a teacher with one, or "
            f"leave --keep-teacher-classes out"
        )


class OwnClasses(Network):
    """A student of all classes as a method sees it: with its own classes only.

    Args:
        student: its head has a column for every class.
        classes: its own ones.
    """

    def __init__(self, student: Network, classes: LabelSpace):
        super().__init__(student.spec, student.dim, classes, student.preprocess)
        self.student, self.head = student, student.head
        self.register_buffer("columns", torch.tensor(columns_of(student.classes, classes)), persistent=False)
        self.columns: Tensor
        self.classified: Tensor | None = None
        """The embeddings [B, dim] that were classified last."""

    def prepare(self, images: Tensor) -> Tensor:
        """As the student does."""
        return self.student.prepare(images)

    def embed_prepared(self, prepared: Tensor) -> Tensor:
        """As the student does."""
        return self.student.embed_prepared(prepared)

    def classify(self, embeddings: Tensor) -> Tensor:
        """Logits [B, own classes]."""
        self.classified = embeddings
        return self.student.classify(embeddings)[:, self.columns]


def keeping_stages(
    method: Method,
    teacher: Network,
    student: Network,
    own: LabelSpace,
    train: Batches,
    settings: object,
    epochs: int,
    *,
    weight: float,
    tau: float,
) -> list[Stage]:
    """The method's stages for the student's own classes; where the head is trained, the term that keeps
    the teacher's is added.

    Args:
        method: trains the own classes.
        teacher: frozen; its classes come first in the student's head.
        student: of all classes.
        own: the classes of the training images.
        train: the training images, labelled by ``own``.
        settings: of the method.
        epochs: of all stages.
        weight: of the term that keeps the teacher's classes.
        tau: its temperature.
    """
    seen = OwnClasses(student, own).to(train.device)

    def keep(stage: Stage) -> Stage:
        def loss(batch: Batch) -> dict[str, Tensor]:
            terms = stage.loss(batch)
            if seen.classified is None:
                return terms
            with torch.no_grad():
                wanted = teacher.classify(embed(teacher, batch))
            of_images = seen.classified[: len(wanted)]  # mixtures, if there are any, come after them
            logits = student.classify(of_images)[:, : len(teacher.classes)]
            seen.classified = None
            return terms | {"keeping": weight * objectives.kd(logits, wanted, tau=tau)}

        if stage.judge != "classifier" or weight == 0:
            return stage
        # Answers of another kind would be taken for embeddings: then nothing is looked up.
        asks = None if stage.asks is not None and stage.wanted != EMBEDDINGS else teacher
        return replace(stage, loss=loss, asks=asks, recipe=None)

    return [keep(stage) for stage in method.stages(teacher, seen, train, settings, epochs)]


@torch.no_grad()
def calibrate(student: Network) -> bool:
    """Drop the biases and give all class weights one length, their mean one, so that classes learned in
    different ways can be compared; returns whether the head is a linear layer and it was done."""
    head = student.head
    if not isinstance(head, nn.Linear):
        return False
    length = head.weight.norm(dim=1).mean()
    head.weight.copy_(F.normalize(head.weight, dim=1) * length)
    if head.bias is not None:
        head.bias.zero_()
    return True


def is_matched_to_centres(settings: object) -> bool:
    """Whether a method with these settings matches its classifier to the teacher's class centres."""
    return isinstance(settings, ClassifierSettings) and settings.strength > 0


def stands_out(scores: Tensor) -> Tensor:
    """How far the best of scores [N, C] stand out above their mean, a mean over images; a scalar.

    Not the very best alone, which a student that knows its training images by heart overstates, nor the
    spread of all: what lies above the mean, by its third power.
    """
    scores = scores.float()
    above = (scores - scores.mean(dim=1, keepdim=True)).clamp(min=0)
    return above.pow(3).sum(dim=1).pow(1 / 3).mean()


@torch.no_grad()
def familiarity(embeddings: Tensor, labels: Tensor, num_classes: int) -> float:
    """How much further the best scores stand out for images of classes that a classifier knows than for
    images of others.

    Half of the classes, drawn again and again, play those that it knows: it scores an image by its cosine
    with other images of each of them, on average.

    Args:
        embeddings: [N, d].
        labels: int64 [N], from 0 to num_classes - 1.
        num_classes: 3 at least.
    """
    unit = F.normalize(embeddings.float(), dim=1)
    scores = unit @ objectives.class_centres(unit, labels, num_classes).T
    rows, count = torch.arange(len(labels), device=labels.device), torch.bincount(labels)[labels]
    scores[rows, labels] = (count * scores[rows, labels] - 1) / (count - 1).clamp(min=1)  # without itself
    generator, known, foreign = seeded_generator(_OF_HALVES), 0.0, 0.0
    for _ in range(_HALVES):
        half = torch.randperm(num_classes, generator=generator)[: max(2, num_classes // 2)].to(labels.device)
        inside = torch.isin(labels, half)
        known += stands_out(scores[inside][:, half]).item()
        foreign += stands_out(scores[~inside][:, half]).item()
    rounding = _HALVES * 1e-6
    return known / foreign if foreign > rounding else 1.0


@torch.no_grad()
def level(
    student: Network, teacher: Network, own: LabelSpace, logits: Tensor, teacher_z: Tensor, labels: Tensor
) -> bool:
    """Bring the old and the new classes to one level, by one factor for all new ones; no old image is needed.

    For new images the best new logits have to stand out further than the best old ones, since their classes
    are among the new ones: how much further is seen in the teacher's embedding, see :func:`familiarity`.
    Within each group logits keep their order, and their mean becomes 0.

    Args:
        student: of all classes, trained.
        teacher: its classes come first in the student's head.
        own: the new classes.
        logits: of the student for N training images, in evaluation mode, [N, all classes].
        teacher_z: embeddings of these images by the teacher, [N, d].
        labels: int64 [N], among ``own``.

    Returns:
        Whether it was done. It is not where the head is no linear layer, where there are fewer than three
        new classes, and where the teacher knows some of them: those tie the two groups together.
    """
    head, old = student.head, len(teacher.classes)
    if not isinstance(head, nn.Linear) or len(own) < 3 or teacher.classes.overlap(own).pairs:
        return False
    now = stands_out(logits[:, old:]) / stands_out(logits[:, :old])
    if not (now.isfinite() and now > 0):
        return False
    factor = familiarity(teacher_z, labels, len(own)) / now
    for values in (head.weight, head.bias):
        if values is not None:
            values[:old] -= values[:old].mean(dim=0)
            values[old:] = factor * (values[old:] - values[old:].mean(dim=0))
    return True
