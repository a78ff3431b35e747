"""ReFilled for few-shot tasks as one would write it first: one task after the other, one network each."""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from refilled import objectives
from refilled.fewshot.batched import one_student
from refilled.fewshot.episodes import Tasks
from refilled.fewshot.refilled import RefilledTasks, TaskImitation
from refilled.fewshot.training import draw_steps
from refilled.methods.refilled_terms import centre_scores, image_weights
from refilled.methods.stage import share
from refilled.models import Network
from refilled.training.settings import autocast_dtype


def only(tasks: Tasks, place: int) -> Tasks:
    """One of the tasks."""
    return replace(tasks, rows=tasks.rows[place : place + 1], numbers=tasks.numbers[place : place + 1])


def train_one(method: RefilledTasks, task: Tasks) -> Network:
    """The student of one task."""
    training, settings, teacher = method.training, method.settings, method.teacher
    student = one_student(method.student, task.ways, task.seed, task.numbers[0], scratch=method.scratch)
    support = teacher.embeddings[task.support[0], 0]
    centres = objectives.class_centres(support, task.support_labels, task.ways)
    length = support.norm(dim=1).mean()
    imitate = None
    weight = settings.imitation if settings.imitation_new is None else settings.imitation_new
    if weight:
        fresh = TaskImitation(task, method.student, teacher, weight)
        imitate = nn.Linear(*reversed(fresh.matrices.shape[1:])).to(centres.device, centres.dtype)
        with torch.no_grad():
            imitate.weight.copy_(fresh.matrices[0])
            imitate.bias.copy_(fresh.biases[0])
    dtype = autocast_dtype(training.precision, task.rows.device)
    plan = iter(draw_steps(task, training.steps, training.per_class, method.views.count))
    if training.head == "centres":
        student.eval()
        with torch.no_grad():
            z = student.embed(method.views.plain(task.support[0]).to(centres.dtype))
            own = objectives.class_centres(z, task.support_labels, task.ways)
            student.head.weight.copy_(10 / z.norm(dim=1).mean() * F.normalize(own, dim=1))
            student.head.bias.zero_()
    student.train(training.statistics == "batch")
    epochs = share(training.steps, settings.embedding_share) if settings.embedding_share else None
    for stage, steps in enumerate(epochs or (0, training.steps)):
        groups = [{"params": student.backbone_parameters(), "lr": training.lr}]
        beside = [*(student.head.parameters() if stage else ()), *(imitate.parameters() if imitate else ())]
        if beside:
            groups.append({"params": beside, "lr": training.head_lr})
        optimiser = torch.optim.SGD(
            groups, lr=training.lr, momentum=training.momentum, weight_decay=training.weight_decay
        )
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(steps, 1))
        for number in range(steps):
            step = next(plan)
            rows, views = step.rows[0], step.views[0]
            images = method.views.show(rows, views).to(centres.dtype)
            teacher_z, labels = teacher.embeddings[rows, views], step.labels
            with torch.autocast(rows.device.type, dtype, enabled=dtype is not None):
                z, logits = student(images)
            z, logits = z.to(centres.dtype), logits.to(centres.dtype)
            if stage:
                scores = centre_scores(teacher_z, centres, length, settings.posterior)
                head = teacher.head_logits[rows, views]
                taught = settings.strength * objectives.local_kd(
                    logits, scores, labels,
                    tau_student=settings.tau_student, tau_teacher=settings.tau_teacher,
                    weights=image_weights(logits, scores, labels, settings, lambda head=head: head),
                )  # fmt: skip
            else:
                taught = objectives.comparison_matching(
                    z, teacher_z, labels,
                    tau_student=settings.comparison_tau_student, tau_teacher=settings.comparison_tau_teacher,
                )  # fmt: skip
            if imitate:
                taught = taught + weight * objectives.direction_matching(imitate(z), teacher_z)
            left = 1 - settings.fade * number / steps if stage else 1.0
            loss = left * taught + (F.cross_entropy(logits, labels) if stage else 0.0)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            falling.step()
    return student.eval()


@torch.no_grad()
def predict_one(method: RefilledTasks, student: Network, task: Tasks) -> Tensor:
    """Predicted classes [ways * queries] of one task."""
    images = method.views.plain(task.queries[0]).to(student._mean.dtype)
    dtype = autocast_dtype(method.training.precision, images.device)
    with torch.autocast(images.device.type, dtype, enabled=dtype is not None):
        return student(images)[1].argmax(dim=1)
