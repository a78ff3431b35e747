"""T students at once: their weights stacked, one optimiser for all.

Batch normalisation is that of an ordinary training, task by task: a step normalises by the statistics of
the task's own batch and moves the task's own running ones, which are used for its queries. So no query ever
sees another one. The gradient of a sum of losses over tasks is, for each task's weights, that of its own
loss; SGD treats every number by itself; hence T trainings in one are T trainings.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from refilled.data.randomness import mixed_seed
from refilled.fewshot.episodes import Tasks
from refilled.fewshot.forward import State, Way, forward
from refilled.models import Network, load
from refilled.models.convnet import ConvNet
from refilled.models.names import as_label_space
from refilled.training.settings import Precision, autocast_dtype

_CENTRE_SCALE = 10.0
_OF_WEIGHTS = mixed_seed(0x77656967)  # apart from all other draws of a seed


class Students:
    """Networks of one architecture with stacked weights.

    Args:
        network: what each of them is; not changed, and its weights are not used.
        weights: parameters [T, ...] by name.
        statistics: running means and variances [T, C] by name.
        way: of computing, see :mod:`refilled.fewshot.forward`.
    """

    def __init__(self, network: Network, weights: State, statistics: State, way: Way = "auto"):
        self.network = copy.deepcopy(network).requires_grad_(False)
        self.weights = {name: value.detach().requires_grad_() for name, value in weights.items()}
        self.statistics = {name: value.detach() for name, value in statistics.items()}
        self.way = way

    def __call__(self, images: Tensor, training: bool) -> tuple[Tensor, Tensor]:
        """Embeddings [T, B, dim] and logits [T, B, ways] of images [T, B, C, side, side]."""
        self.network.train(training)
        images = images.to(self.network._mean.dtype)
        return forward(self.network, self.weights, self.statistics, images, self.way)

    @property
    def backbone(self) -> list[Tensor]:
        """Stacked parameters that make the embeddings."""
        return [value for name, value in self.weights.items() if not name.startswith("head.")]

    @property
    def head(self) -> list[Tensor]:
        """Stacked parameters of the classifiers."""
        return [value for name, value in self.weights.items() if name.startswith("head.")]

    @torch.no_grad()
    def predict(self, images: Tensor, precision: Precision = "float32") -> Tensor:
        """Classes int64 [T, B], by the running statistics."""
        dtype = autocast_dtype(precision, images.device)
        with torch.autocast(images.device.type, dtype, enabled=dtype is not None):
            return self(images, training=False)[1].argmax(dim=2)


def start_students(network: Network, tasks: Tasks, *, scratch: bool = False, way: Way = "auto") -> Students:
    """A student for each task: the network with a fresh head, or with fresh weights altogether.

    What is fresh is a function of the tasks' seed and the task's number.

    Args:
        network: whose architecture, and unless ``scratch`` whose weights, the students start with.
        tasks: as many students, with as many classes.
        scratch: start from fresh weights everywhere; for networks of ours.
        way: of computing.
    """
    seeds = [(tasks.seed, number) for number in tasks.numbers]
    if not scratch:  # all but the heads is the same
        students = repeated_students(one_student(network, tasks.ways, *seeds[0]), len(tasks), way)
        for name, value in fresh_linear(network, network.dim, tasks.ways, seeds).items():
            students.weights[f"head.{name}"] = value
        return students
    first = one_student(network, tasks.ways, *seeds[0], scratch=True)
    students = repeated_students(first, len(tasks), way)
    for name, value in _stacked(list(_fresh_weights(first, network, tasks.ways, seeds))).items():
        students.weights[name] = value.to(first.device, first._mean.dtype).requires_grad_()
    return students


@torch.no_grad()
def start_at_centres(students: Students, images: Tensor, labels: Tensor, precision: Precision) -> None:
    """Set the heads: logits are ten cosines with the mean embeddings of the classes, for embeddings of the
    support's mean length.

    Args:
        students: of T tasks.
        images: support [T, B, C, side, side] from 0 to 1, seen by the running statistics.
        labels: int64 [B].
        precision: of the networks.
    """
    dtype = autocast_dtype(precision, images.device)
    with torch.autocast(images.device.type, dtype, enabled=dtype is not None):
        z = students(images, training=False)[0]
    weight, bias = (students.weights[f"head.{name}"] for name in ("weight", "bias"))
    z = z.to(weight.dtype)
    chosen = F.one_hot(labels, weight.shape[1]).to(z.dtype)  # [B, ways]
    length = z.norm(dim=2).mean(dim=1).clamp(min=1e-6)
    weight.copy_(_CENTRE_SCALE / length[:, None, None] * F.normalize(chosen.T @ z, dim=2))
    bias.zero_()


def one_student(network: Network, ways: int, *seeds: int, scratch: bool = False) -> Network:
    """A network of its own, as :func:`start_students` makes it for a task with ``seeds`` (seed, number)."""
    if scratch:
        how = network.preprocess
        with _seeded(*seeds):
            fresh = load(
                network.spec, ways, image_size=how.size, channels=how.channels, mean=how.mean, std=how.std
            )
        return fresh.to(network.device, network._mean.dtype)
    student = copy.deepcopy(network).requires_grad_(True)
    student.head = _fresh(network.dim, ways, *seeds).to(network.device, network._mean.dtype)
    student.classes = as_label_space(ways)
    return student


def _fresh_weights(
    first: Network, network: Network, ways: int, seeds: Sequence[tuple[int, ...]]
) -> Iterator[State]:
    """Parameters of :func:`one_student` from scratch for each of the seeds; a ConvNet is made only once."""
    again = copy.deepcopy(first).cpu().float() if isinstance(first, ConvNet) else None
    for each in seeds:
        if again is None:
            yield dict(one_student(network, ways, *each, scratch=True).named_parameters())
            continue
        with _seeded(*each):
            again.refresh()
        yield {name: value.detach().clone() for name, value in again.named_parameters()}


def fresh_linear(network: Network, inputs: int, outputs: int, seeds: Sequence[tuple[int, ...]]) -> State:
    """Fresh linear layers: weight [T, outputs, inputs] and bias [T, outputs], each a function of its seeds.

    Args:
        network: on whose device, in whose precision.
        inputs, outputs: of a layer.
        seeds: of each of T layers.
    """
    stacked = _stacked([dict(_fresh(inputs, outputs, *each).named_parameters()) for each in seeds])
    return {
        name: value.to(network.device, network._mean.dtype).requires_grad_()
        for name, value in stacked.items()
    }


def _fresh(inputs: int, outputs: int, *seeds: int) -> nn.Linear:
    with _seeded(*seeds):
        return nn.Linear(inputs, outputs)


def repeated_students(network: Network, count: int, way: Way = "auto") -> Students:
    """``count`` copies of a network, with its own head."""
    each = {
        name: value.detach().expand(count, *value.shape).clone() for name, value in network.named_parameters()
    }
    statistics = {
        name: value.expand(count, *value.shape).clone() for name, value in _statistics(network).items()
    }
    return Students(network, each, statistics, way)


def _statistics(network: Network) -> State:
    """Running means and variances; how many batches they are of is of no use here."""
    return {
        name: value
        for name, value in network.named_buffers()
        if name.endswith(("running_mean", "running_var"))
    }


def _stacked(states: list[State]) -> State:
    return {name: torch.stack([state[name].detach() for state in states]) for name in states[0]}


@contextmanager
def _seeded(*parts: int) -> Iterator[None]:
    """Layers draw their first weights from the global generator: set it, and put it back."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(mixed_seed(_OF_WEIGHTS, *parts))  # that of a GPU stays as it is
        yield
