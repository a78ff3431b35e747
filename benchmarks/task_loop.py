"""ReFilled for few-shot tasks as one would write it first: one task after the other, one network each."""

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


def train_one(method: RefilledTasks, tasks: Tasks, place: int) -> Network:
    """The student of the task at ``place`` among the tasks, trained by itself."""
    training, settings, teacher = method.training, method.settings, method.teacher
    student = one_student(method.student, tasks, tasks.numbers[place], scratch=method.scratch)
    support = teacher.embeddings[tasks.support[place], 0]
    centres = objectives.class_centres(support, tasks.support_labels, tasks.ways)
    plan = iter(draw_steps(tasks, training.steps, training.per_class, method.views.count))
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
            rows, views = step.rows[place], step.views[place]
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
def predict_one(method: RefilledTasks, student: Network, tasks: Tasks, place: int) -> Tensor:
    """Predicted classes [ways * queries] of one task."""
    images = method.views.plain(tasks.queries[place]).to(student._mean.dtype)
    return student(images)[1].argmax(dim=1)
