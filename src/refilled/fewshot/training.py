"""Train the students of many tasks at once, each on its own support."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from refilled.checks import check_choices, check_number
from refilled.data.randomness import mixed_seed, seeded_generator
from refilled.errors import UserError
from refilled.fewshot.batched import Students, start_at_centres, start_students
from refilled.fewshot.episodes import Tasks
from refilled.fewshot.forward import Way
from refilled.fewshot.views import Views
from refilled.models import Network
from refilled.training.settings import Precision, autocast_dtype

_OF_STEPS = mixed_seed(0x73746570)  # apart from all other draws of a seed


Statistics = Literal["batch", "known"]
Head = Literal["fresh", "centres"]


@dataclass(frozen=True)
class TaskTraining:
    """How long and how fast a student learns a task; the defaults are for one that starts from scratch."""

    steps: int = 100
    """Steps of all stages together."""
    per_class: int = 5
    """Images of each class in a step: fewer than the shots are a part of them, more show several views."""
    lr: float = 0.03
    """Learning rate of the backbone, at the start of each stage; it falls to 0 along a cosine."""
    head_lr: float = 0.1
    """Learning rate of the head, likewise."""
    momentum: float = 0.9
    weight_decay: float = 5e-4
    statistics: Statistics = "batch"
    """What batch normalisation uses while a student learns: those of a task's own batches, which for a task
    of five images say little, or the known ones of the network that it starts from."""
    head: Head = "fresh"
    """First weights of the head: fresh ones, or the centres of the support in the student's own embedding,
    so that it starts as the nearest class mean."""
    precision: Precision = "auto"
    """Of the networks; losses are always float32. auto is bfloat16 on a GPU, else float32."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_number("steps", self.steps, least=1)
        check_number("per_class", self.per_class, least=1)
        check_number("lr", self.lr, least=0)
        check_number("head_lr", self.head_lr, least=0)
        check_number("momentum", self.momentum, least=0, below=1)
        check_number("weight_decay", self.weight_decay, least=0)


@dataclass(frozen=True)
class FineTuning(TaskTraining):
    """The same for students that start from a network of the seen classes: gently, with its statistics and
    from the nearest class mean (results/fewshot-choices.md)."""

    steps: int = 50
    lr: float = 0.0003
    head_lr: float = 0.003
    statistics: Statistics = "known"
    head: Head = "centres"


@dataclass(frozen=True)
class TaskStep:
    """What one step of T tasks sees."""

    rows: Tensor
    """int64 [T, B], of the pool"""
    views: Tensor
    """int64 [T, B]"""
    labels: Tensor
    """int64 [B], the same for every task"""
    progress: float = 0.0
    """How much of the stage's steps lies behind."""


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of each task: [T] for logits [T, B, ways] and labels [B]."""
    wanted = labels.expand(len(logits), -1)
    return F.cross_entropy(logits.mT, wanted, reduction="none").mean(dim=1)


TaskLoss = Callable[[Tensor, Tensor, TaskStep], Tensor]
"""Losses [T] of embeddings [T, B, dim] and logits [T, B, ways] in a step."""


@dataclass(frozen=True)
class TaskStage:
    """So many steps with one loss."""

    steps: int
    loss: TaskLoss
    with_head: bool = True
    """Whether the head learns too."""
    beside: Sequence[Tensor] = ()
    """Fresh weights [T, ...] that learn beside the students, as fast as heads."""


def start_tasks(
    network: Network, tasks: Tasks, views: Views, settings: TaskTraining, *, scratch: bool, way: Way
) -> Students:
    """The students of the tasks as they start: see :func:`start_students` and the settings.

    Args:
        network: whose architecture, and unless ``scratch`` whose weights, they start with.
        tasks: as many students.
        views: of the pool's images.
        settings: how heads start, and how students are normalised.
        scratch: start from fresh weights.
        way: of computing.
    """
    if scratch and settings.statistics == "known":
        raise UserError("fresh weights have no known statistics; use statistics=batch")
    students = start_students(network, tasks, scratch=scratch, way=way)
    if settings.head == "centres":
        start_at_centres(students, views.plain(tasks.support), tasks.support_labels, settings.precision)
    return students


def draw_steps(tasks: Tasks, steps: int, per_class: int, views: int) -> list[TaskStep]:
    """What each step sees; of a task a function of its seed and number, however many are drawn together.

    Every class has ``per_class`` places in a step. They are filled from one random order of its support
    after the other, so that all its images are seen equally often; each place has a random view.
    """
    picks, seen = [], []
    rounds = -(-steps * per_class // tasks.shots)
    for number in tasks.numbers:
        generator = seeded_generator(tasks.seed, _OF_STEPS, number)
        orders = torch.rand(tasks.ways, rounds, tasks.shots, generator=generator).argsort(dim=2)
        picks.append(orders.flatten(1)[:, : steps * per_class])
        seen.append(torch.randint(0, views, (tasks.ways, steps * per_class), generator=generator))
    device = tasks.rows.device
    rows = tasks.rows.gather(2, torch.stack(picks).to(device))  # [T, ways, steps * per_class]
    labels = torch.arange(tasks.ways, device=device).repeat_interleave(per_class)
    shape = (len(tasks), tasks.ways, steps, per_class)
    # [T, ways, steps, per_class] to [steps, T, ways * per_class], class by class
    by_step, views_by_step = (
        part.view(shape).permute(2, 0, 1, 3).flatten(2) for part in (rows, torch.stack(seen).to(device))
    )
    return [TaskStep(*each, labels) for each in zip(by_step, views_by_step)]


def train_tasks(
    students: Students, tasks: Tasks, views: Views, stages: Sequence[TaskStage], settings: TaskTraining
) -> None:
    """Train every student on its task, stage after stage.

    Each stage has a fresh SGD with momentum over stacked weights; its learning rate falls along a cosine.
    """
    total = sum(stage.steps for stage in stages)
    dtype = autocast_dtype(settings.precision, tasks.rows.device)
    plan = iter(draw_steps(tasks, total, settings.per_class, views.count))
    for stage in stages:
        groups = [{"params": students.backbone, "lr": settings.lr}]
        fresh = [*(students.head if stage.with_head else ()), *stage.beside]
        if fresh:
            groups.append({"params": fresh, "lr": settings.head_lr})
        optimiser = torch.optim.SGD(
            groups, lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay
        )
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, stage.steps)
        for number in range(stage.steps):
            step = replace(next(plan), progress=number / stage.steps)
            with torch.autocast(step.rows.device.type, dtype, enabled=dtype is not None):
                z, logits = students(views.show(step.rows, step.views), settings.statistics == "batch")
            if dtype is not None:
                z, logits = z.float(), logits.float()
            optimiser.zero_grad()
            stage.loss(z, logits, step).sum().backward()
            optimiser.step()
            falling.step()
