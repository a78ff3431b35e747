"""ReFilled for few-shot tasks as one would write it first: one task after the other, one network each."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from refilled import objectives
from refilled.fewshot.batched import one_student
from refilled.fewshot.episodes import Tasks
from refilled.fewshot.refilled import RefilledTasks
from refilled.fewshot.training import draw_steps
from refilled.methods.stage import share
from refilled.models import Network


def only(tasks: Tasks, place: int) -> Tasks:
    """One of the tasks."""
    return replace(tasks, rows=tasks.rows[place : place + 1], numbers=tasks.numbers[place : place + 1])


def train_one(method: RefilledTasks, task: Tasks) -> Network:
    """The student of one task."""
    training, settings, teacher = method.training, method.settings, method.teacher
    student = one_student(method.student, task.ways, task.seed, task.numbers[0], scratch=method.scratch)
    support = teacher.embeddings[task.support[0], 0]
    centres = objectives.class_centres(support, task.support_labels, task.ways)
    plan = iter(draw_steps(task, training.steps, training.per_class, method.views.count))
    student.train()
    for stage, steps in enumerate(share(training.steps, settings.embedding_share)):
        groups = [{"params": student.backbone_parameters(), "lr": training.lr}]
        if stage:
            groups.append({"params": list(student.head.parameters()), "lr": training.head_lr})
        optimiser = torch.optim.SGD(
            groups, lr=training.lr, momentum=training.momentum, weight_decay=training.weight_decay
        )
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        for _ in range(steps):
            step = next(plan)
            rows, views = step.rows[0], step.views[0]
            images = method.views.show(rows, views).to(centres.dtype)
            teacher_z, labels = teacher.embeddings[rows, views], step.labels
            with torch.autocast(rows.device.type, torch.bfloat16, enabled=training.bfloat16):
                z, logits = student(images)
            z, logits = z.to(centres.dtype), logits.to(centres.dtype)
            if stage:
                scores = objectives.class_scores(teacher_z, centres)
                weights = objectives.confidence_weights(teacher.head_logits[rows, views], min_max=True)
                loss = F.cross_entropy(logits, labels) + settings.strength * objectives.local_kd(
                    logits, scores, labels,
                    tau_student=settings.tau_student, tau_teacher=settings.tau_teacher, weights=weights,
                )  # fmt: skip
            else:
                loss = objectives.comparison_matching(
                    z, teacher_z, labels,
                    tau_student=settings.comparison_tau_student, tau_teacher=settings.comparison_tau_teacher,
                )  # fmt: skip
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            falling.step()
    return student.eval()


@torch.no_grad()
def predict_one(method: RefilledTasks, student: Network, task: Tasks) -> Tensor:
    """Predicted classes [ways * queries] of one task."""
    images = method.views.plain(task.queries[0]).to(student._mean.dtype)
    return student(images)[1].argmax(dim=1)
