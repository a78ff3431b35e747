"""ReFilled for few-shot tasks: Ye, Lu, Zhan, Sections 4.2 and 4.3 on the support of each task.

The student first learns to compare the support's views as the teacher does, then its classifier is matched
to the class centres of the support in the teacher's embedding. The terms are the objectives themselves,
mapped over tasks. Section 5.4 of the paper leaves open how long a task is trained and with which views.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F

from refilled import objectives
from refilled.errors import UserError
from refilled.fewshot.batched import Students, start_students
from refilled.fewshot.episodes import Tasks
from refilled.fewshot.forward import Way
from refilled.fewshot.settings import RefilledTaskSettings
from refilled.fewshot.training import TaskLoss, TaskStage, TaskStep, TaskTraining, train_tasks
from refilled.fewshot.views import Views
from refilled.methods.refilled_settings import ClassifierSettings, ComparisonSettings, RefilledSettings
from refilled.methods.stage import share
from refilled.models import Network

_COSINE_SCALE = 20.0  # as in refilled.methods.refilled


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


def comparison_loss(teacher: TeacherView, settings: ComparisonSettings) -> TaskLoss:
    """Stage 1: match comparisons."""

    def loss(z: Tensor, logits: Tensor, step: TaskStep) -> Tensor:
        return comparison_losses(z, teacher.embeddings[step.rows, step.views], step.labels, settings)

    return loss


def classifier_loss(teacher: TeacherView, tasks: Tasks, settings: ClassifierSettings) -> TaskLoss:
    """Stage 2: cross-entropy and the weighted local distillation from the support's class centres."""
    support, labels = teacher.embeddings[tasks.support, 0], tasks.support_labels
    centres = vmap(lambda z: objectives.class_centres(z, labels, tasks.ways))(support)  # [T, ways, d]
    if settings.posterior == "literal" and bool((centres < 0).any()):
        raise UserError(
            "posterior=literal divides by a sum of scores and needs embeddings that are never negative; "
            "some of the teacher's are. Use posterior=dot"
        )

    def one(logits: Tensor, z: Tensor, head: Tensor, centres: Tensor, labels: Tensor) -> Tensor:
        scores = class_scores(z, centres, settings)
        weights = trust(logits, scores, head, labels, settings)
        return F.cross_entropy(logits, labels) + settings.strength * objectives.local_kd(
            logits, scores, labels,
            tau_student=settings.tau_student, tau_teacher=settings.tau_teacher, weights=weights,
        )  # fmt: skip

    def loss(z: Tensor, logits: Tensor, step: TaskStep) -> Tensor:
        seen = (step.rows, step.views)
        mapped = vmap(one, in_dims=(0, 0, 0, 0, None))
        return mapped(logits, teacher.embeddings[seen], teacher.head_logits[seen], centres, step.labels)

    return loss


def class_scores(teacher_z: Tensor, centres: Tensor, settings: ClassifierSettings) -> Tensor:
    """Equation 7, of one task: the teacher's scores [B, ways]."""
    if settings.posterior == "cosine":
        teacher_z = _COSINE_SCALE * F.normalize(teacher_z, dim=1)
    scores = objectives.class_scores(teacher_z, centres)
    return objectives.class_posterior(scores) if settings.posterior == "literal" else scores


def trust(
    logits: Tensor, scores: Tensor, head_logits: Tensor, labels: Tensor, settings: ClassifierSettings
) -> Tensor | None:
    """Equation 9, of one task: λ_i / λ [B], or None for no weights."""
    if settings.weight == "head":
        return objectives.confidence_weights(head_logits, min_max=True)
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


class RefilledTasks:
    """Both stages for every task; predicts classes of the queries.

    Args:
        teacher: its answers to all views of the pool.
        student: architecture, and unless ``scratch`` first weights, of the students.
        views: of the pool's images.
        training: of the students.
        settings: of the method.
        scratch: students start from fresh weights instead of those of ``student``.
        way: of computing many students at once.
    """

    def __init__(
        self,
        teacher: TeacherView,
        student: Network,
        views: Views,
        training: TaskTraining | None = None,
        settings: RefilledSettings | RefilledTaskSettings | None = None,
        *,
        scratch: bool = False,
        way: Way = "auto",
    ):
        self.teacher, self.student, self.views = teacher, student, views
        self.training, self.settings = training or TaskTraining(), settings or RefilledSettings()
        self.scratch, self.way = scratch, way

    def stages(self, tasks: Tasks) -> list[TaskStage]:
        """The embedding, then the classifier."""
        first, second = share(self.training.steps, self.settings.embedding_share)
        return [
            TaskStage(first, comparison_loss(self.teacher, self.settings), with_head=False),
            TaskStage(second, classifier_loss(self.teacher, tasks, self.settings)),
        ]

    def train(self, tasks: Tasks) -> Students:
        """The trained students of the tasks."""
        students = start_students(self.student, tasks, scratch=self.scratch, way=self.way)
        train_tasks(students, tasks, self.views, self.stages(tasks), self.training)
        return students

    def __call__(self, tasks: Tasks) -> Tensor:
        """Predicted classes int64 [T, ways * queries]."""
        return self.train(tasks).predict(self.views.plain(tasks.queries))
