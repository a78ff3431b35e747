"""ReFilled for few-shot tasks: Ye, Lu, Zhan, Sections 4.2 and 4.3 on the support of each task.

The student first learns to compare the support's views as the teacher does, then its classifier is matched
to the class centres of the support in the teacher's embedding. The terms are the objectives themselves,
mapped over tasks. Section 5.4 of the paper leaves open how long a task is trained and with which views.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap

from refilled import objectives
from refilled.data.randomness import mixed_seed
from refilled.errors import UserError
from refilled.fewshot.batched import Students, fresh_linear
from refilled.fewshot.episodes import Tasks
from refilled.fewshot.forward import Way
from refilled.fewshot.training import (
    FineTuning,
    TaskLoss,
    TaskStage,
    TaskStep,
    TaskTraining,
    cross_entropies,
    start_tasks,
    train_tasks,
)
from refilled.fewshot.views import Views
from refilled.methods.refilled_settings import (
    ClassifierSettings,
    ComparisonSettings,
    FewSettings,
    RefilledSettings,
    TunedSettings,
)
from refilled.methods.refilled_terms import centre_scores, image_weights
from refilled.methods.stage import share
from refilled.models import Network

_OF_MAPS = mixed_seed(0x6D617073)  # apart from all other draws of a seed


@dataclass(frozen=True)
class TeacherView:
    """What the teacher says of every view of every image of the pool; known before the first task."""

    embeddings: Tensor
    """[N, views, dim]"""
    head_logits: Tensor
    """[N, views, classes of the teacher]"""


@torch.no_grad()
def ask_teacher(teacher: Network, views: Views) -> TeacherView:
    """The frozen teacher's answers; it is put into evaluation mode."""
    embeddings = views.embed(teacher)
    return TeacherView(embeddings, teacher.classify(embeddings))


def comparison_losses(
    student_z: Tensor, teacher_z: Tensor, labels: Tensor, settings: ComparisonSettings
) -> Tensor:
    """Stage 1's loss of each task: [T] for embeddings [T, B, d] and [T, B, d'] and labels [B].

    Windows of impostors (``margin``, ``max_impostors``) cannot be mapped over tasks; those go one by one.
    """

    def one(student_z: Tensor, teacher_z: Tensor) -> Tensor:
        return settings.comparison_scale * objectives.comparison_matching(
            student_z, teacher_z, labels,
            tau_student=settings.comparison_tau_student, tau_teacher=settings.comparison_tau_teacher,
            margin=settings.margin, max_impostors=settings.max_impostors,
        )  # fmt: skip

    if settings.margin is None and settings.max_impostors is None:
        return vmap(one)(student_z, teacher_z)
    return torch.stack([one(*each) for each in zip(student_z, teacher_z)])


class TaskImitation:
    """Imitation, mapped over tasks: a linear map of each student's embedding, fresh for every task.

    Args:
        tasks: as many maps; each is a function of the tasks' seed and the task's number.
        student: whose embeddings are mapped.
        teacher: its answers; None of its weights are needed.
        weight: of the term.
    """

    def __init__(self, tasks: Tasks, student: Network, teacher: TeacherView, weight: float):
        seeds = [(_OF_MAPS, tasks.seed, number) for number in tasks.numbers]
        maps = fresh_linear(student, student.dim, teacher.embeddings.shape[-1], seeds)
        self.matrices, self.biases, self.weight = maps["weight"], maps["bias"], weight

    @property
    def weights(self) -> list[Tensor]:
        """The maps [T, dim of the teacher, dim of the student] and [T, dim of the teacher]."""
        return [self.matrices, self.biases]

    def __call__(self, student_z: Tensor, teacher_z: Tensor) -> Tensor:
        """Losses [T] of embeddings [T, B, d] and [T, B, d']."""
        mapped = student_z @ self.matrices.mT + self.biases[:, None]
        return self.weight * vmap(objectives.direction_matching)(mapped, teacher_z)


def comparison_loss(
    teacher: TeacherView, settings: ComparisonSettings, imitate: TaskImitation | None = None
) -> TaskLoss:
    """Stage 1: match comparisons, perhaps imitate."""

    def loss(z: Tensor, logits: Tensor, step: TaskStep) -> Tensor:
        teacher_z = teacher.embeddings[step.rows, step.views]
        losses = comparison_losses(z, teacher_z, step.labels, settings)
        return losses if imitate is None else losses + imitate(z, teacher_z)

    return loss


def classifier_loss(
    teacher: TeacherView,
    tasks: Tasks,
    settings: ClassifierSettings,
    imitate: TaskImitation | None = None,
    fade: float = 0.0,
) -> TaskLoss:
    """Stage 2: cross-entropy and, if it has any strength, the weighted local distillation from the support's
    class centres; perhaps imitation goes on, and perhaps the teacher's terms fade."""
    support, labels = teacher.embeddings[tasks.support, 0], tasks.support_labels
    centres = vmap(lambda z: objectives.class_centres(z, labels, tasks.ways))(support)  # [T, ways, d]
    lengths = support.norm(dim=2).mean(dim=1)  # [T]
    if settings.strength and settings.posterior == "literal" and bool((centres < 0).any()):
        raise UserError(
            "posterior=literal divides by a sum of scores and needs embeddings that are never negative; "
            "some of the teacher's are. Use posterior=dot"
        )

    def one(
        logits: Tensor, z: Tensor, head: Tensor, centres: Tensor, length: Tensor, labels: Tensor
    ) -> Tensor:
        scores = centre_scores(z, centres, length, settings.posterior)
        weights = image_weights(logits, scores, labels, settings, lambda: head)
        return settings.strength * objectives.local_kd(
            logits, scores, labels,
            tau_student=settings.tau_student, tau_teacher=settings.tau_teacher, weights=weights,
        )  # fmt: skip

    def loss(z: Tensor, logits: Tensor, step: TaskStep) -> Tensor:
        seen = (step.rows, step.views)
        teacher_z, left = teacher.embeddings[seen], 1 - fade * step.progress
        losses = cross_entropies(logits, step.labels)
        if settings.strength:
            mapped = vmap(one, in_dims=(0, 0, 0, 0, 0, None))
            kd = mapped(logits, teacher_z, teacher.head_logits[seen], centres, lengths, step.labels)
            losses = losses + left * kd
        return losses if imitate is None else losses + left * imitate(z, teacher_z)

    return loss


_NO_OTHERS = "students of few-shot tasks see no images without labels"
_NEW = "classes of few-shot tasks are new to the teacher"
_NOT_FOR_TASKS = {
    "group": "students of few-shot tasks see images as they are shuffled",
    "mixtures": "students of few-shot tasks see no mixtures",
    "imitation_unlabelled": _NO_OTHERS,
    "head_unlabelled": _NO_OTHERS,
    "head_same": _NEW,
    "head_share": _NEW,
    "head_tau": _NEW,
    "head_fade": _NEW,
}
"""Settings that do nothing here, and why."""


class RefilledTasks:
    """Both stages for every task; predicts classes of the queries.

    Args:
        teacher: its answers to all views of the pool.
        student: architecture, and unless ``scratch`` first weights, of the students.
        views: of the pool's images.
        training: of the students; None: :class:`TaskTraining` from scratch, else :class:`FineTuning`.
        settings: of the method; None: what measured best for such a start.
        scratch: students start from fresh weights instead of those of ``student``.
        way: of computing many students at once.
    """

    def __init__(
        self,
        teacher: TeacherView,
        student: Network,
        views: Views,
        training: TaskTraining | None = None,
        settings: RefilledSettings | None = None,
        *,
        scratch: bool = False,
        way: Way = "auto",
    ):
        self.teacher, self.student, self.views = teacher, student, views
        self.training = training or (TaskTraining() if scratch else FineTuning())
        self.settings = settings or (FewSettings() if scratch else TunedSettings())
        self.scratch, self.way = scratch, way
        for name, reason in _NOT_FOR_TASKS.items():
            if getattr(self.settings, name) != getattr(type(self.settings)(), name):
                raise UserError(f"{reason}: leave {name} out")

    def stages(self, tasks: Tasks) -> list[TaskStage]:
        """The embedding, then the classifier; or the classifier alone, if that has all steps."""
        own, steps = self.settings, self.training.steps
        weight = own.imitation if own.imitation_new is None else own.imitation_new  # all classes are new
        imitate = TaskImitation(tasks, self.student, self.teacher, weight) if weight else None
        beside = imitate.weights if imitate is not None else ()
        first, second = share(steps, own.embedding_share) if own.embedding_share else (0, steps)
        last = classifier_loss(self.teacher, tasks, own, imitate, own.fade)
        stages = [TaskStage(second, last, beside=beside)]
        if first:
            matched = comparison_loss(self.teacher, own, imitate)
            stages.insert(0, TaskStage(first, matched, with_head=False, beside=beside))
        return stages

    def train(self, tasks: Tasks) -> Students:
        """The trained students of the tasks."""
        students = start_tasks(
            self.student, tasks, self.views, self.training, scratch=self.scratch, way=self.way
        )
        train_tasks(students, tasks, self.views, self.stages(tasks), self.training)
        return students

    def __call__(self, tasks: Tasks) -> Tensor:
        """Predicted classes int64 [T, ways * queries]."""
        return self.train(tasks).predict(self.views.plain(tasks.queries), self.training.precision)
