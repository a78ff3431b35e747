"""MAML: Finn, Abbeel, Levine: Model-Agnostic Meta-Learning, 2017 (https://arxiv.org/abs/1703.03400).

First weights from which a few steps of gradient descent on a task's support do well on its queries. This is
the first-order version (their Section 5.2): the gradient at the adapted weights is applied to the first ones.

As in the original, all queries of a task are normalised together: here alone a query knows of the others,
which is worth some points (Bronskill et al., 2020, https://arxiv.org/abs/2003.03284, measure how much).

Unlike the original, it may start from a trained network, with a head of zeros that prefers no class (as Ye,
Chao, 2021, https://arxiv.org/abs/2106.16245 advise), and the inner learning rate is ten times as high: the
embedding here is an average over positions, whose gradient is so much smaller.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from refilled.checks import check_choices, check_number
from refilled.data import Progress
from refilled.data.augment import unit_floats
from refilled.errors import UserError
from refilled.fewshot.batched import Students, repeated_students
from refilled.fewshot.episodes import Episodes, Tasks
from refilled.fewshot.forward import Way
from refilled.fewshot.training import cross_entropies
from refilled.fewshot.views import Pool
from refilled.models import Network
from refilled.objectives.precision import full_precision
from refilled.training.replay import Replayed
from refilled.training.settings import Precision, autocast_dtype


@dataclass(frozen=True)
class MamlTraining:
    """How first weights are learnt, and how a task starts from them."""

    iterations: int = 60_000
    tasks: int = 4
    """In an iteration."""
    shots: int = 5
    queries: int = 15
    lr: float = 1e-3
    """Of Adam on the first weights."""
    inner_lr: float = 0.1
    inner_steps: int = 5
    task_steps: int = 10
    """Steps when a task is learnt for its own sake."""
    seed: int = 0
    precision: Precision = "auto"
    """Of the networks; losses are always float32. auto is bfloat16 on a GPU, else float32."""

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("iterations", "tasks"):
            check_number(name, getattr(self, name), least=1)
        for name in ("lr", "inner_lr", "inner_steps", "task_steps"):
            check_number(name, getattr(self, name), least=0)


def adapt(
    students: Students,
    images: Tensor,
    labels: Tensor,
    steps: int,
    lr: float,
    dtype: torch.dtype | None = None,
) -> None:
    """Steps of gradient descent on each task's support, in place.

    Args:
        students: of T tasks.
        images: support [T, B, C, side, side] from 0 to 1.
        labels: int64 [B].
        steps: how many.
        lr: of plain gradient descent.
        dtype: of the autocast, or None.
    """
    for _ in range(steps):
        losses = cross_entropies(_logits(students, images, dtype), labels)
        names, weights = zip(*students.weights.items())
        gradients = torch.autograd.grad(losses.sum(), weights)
        for name, weight, gradient in zip(names, weights, gradients):
            students.weights[name] = (weight - lr * gradient).detach().requires_grad_()


def train_maml(
    network: Network,
    seen: Pool,
    settings: MamlTraining | None = None,
    *,
    way: Way = "auto",
    progress: Progress | None = None,
) -> None:
    """Learn a network's weights, head included, as first weights for tasks; in place.

    On a CUDA device an iteration is the replay of one captured graph.

    Args:
        network: its head has as many classes as a task.
        seen: images of the seen classes.
        settings: how long and how fast.
        way: of computing tasks at once.
        progress: called with (done, total).
    """
    settings = settings or MamlTraining()
    episodes = Episodes(
        seen.labels,
        settings.shots,
        ways=len(network.classes),
        queries=settings.queries,
        seed=settings.seed,
        classes=seen.classes,
    )
    on_gpu = network.device.type == "cuda"
    optimiser = torch.optim.Adam(
        network.requires_grad_(True).parameters(),
        lr=settings.lr,
        capturable=on_gpu,
        fused=True if on_gpu else None,
    )

    def step(rows: Tensor) -> None:
        """Learn from tasks with rows [tasks, ways, shots + queries]; their numbers play no part."""
        tasks = Tasks(rows, settings.shots, settings.seed, range(len(rows)))
        for name, gradient in meta_gradient(network, seen, tasks, settings, way).items():
            parameter = network.get_parameter(name)
            parameter.grad = torch.empty_like(parameter).copy_(gradient)  # a fused Adam wants equal strides
        optimiser.step()

    replayed = Replayed(step, [network], optimiser)
    for number in range(settings.iterations):
        replayed(episodes.draw(number * settings.tasks, settings.tasks).rows)
        if progress is not None:
            progress(number + 1, settings.iterations)
    network.eval().requires_grad_(False)


def meta_gradient(
    network: Network, pool: Pool, tasks: Tasks, settings: MamlTraining, way: Way = "auto"
) -> dict[str, Tensor]:
    """Mean over tasks of the queries' gradient at the adapted weights, by the parameters' names."""
    dtype = autocast_dtype(settings.precision, network.device)
    students = repeated_students(network, len(tasks), way)
    support, queries = _images(pool, tasks.support), _images(pool, tasks.queries)
    adapt(students, support, tasks.support_labels, settings.inner_steps, settings.inner_lr, dtype)
    losses = cross_entropies(_logits(students, queries, dtype), tasks.query_labels)
    gradients = torch.autograd.grad(losses.sum(), list(students.weights.values()))
    return {name: gradient.mean(dim=0) for name, gradient in zip(students.weights, gradients)}


class MamlTasks:
    """Tasks learnt from MAML's first weights.

    Args:
        network: of :func:`train_maml`.
        pool: images of the tasks.
        settings: those that it was trained with.
        way: of computing tasks at once.
    """

    def __init__(
        self,
        network: Network,
        pool: Pool,
        settings: MamlTraining | None = None,
        *,
        way: Way = "auto",
    ):
        self.network, self.pool, self.settings = network, pool, settings or MamlTraining()
        self.way = way

    def __call__(self, tasks: Tasks) -> Tensor:
        """Predicted classes int64 [T, ways * queries]."""
        if tasks.ways != len(self.network.classes):
            known = len(self.network.classes)
            raise UserError(f"this network has learnt to learn tasks of {known} ways, not of {tasks.ways}")
        settings, dtype = self.settings, autocast_dtype(self.settings.precision, self.network.device)
        students = repeated_students(self.network, len(tasks), self.way)
        support, queries = _images(self.pool, tasks.support), _images(self.pool, tasks.queries)
        adapt(students, support, tasks.support_labels, settings.task_steps, settings.inner_lr, dtype)
        with torch.no_grad():
            return _logits(students, queries, dtype).argmax(dim=2)


def _logits(students: Students, images: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Logits [T, B, ways] of images [T, B, C, side, side], normalised by their own statistics task by task;
    float32 or float64."""
    with torch.autocast(images.device.type, dtype, enabled=dtype is not None):
        return full_precision(students(images, training=True)[1])


def _images(pool: Pool, rows: Tensor) -> Tensor:
    return unit_floats(pool.images[rows.flatten()]).unflatten(0, rows.shape)
