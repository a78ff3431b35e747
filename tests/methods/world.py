"""A tiny teacher, student and training set that the tests of the methods share."""

import copy

import torch
from torch import Tensor, nn

from refilled.data import Batch, Batches
from refilled.methods import Stage, get_method
from refilled.models import Network, load

TEACHER_CLASSES = ["ant", "bee", "cat", "dog", "elk", "fox", "gnu"]
STUDENT_CLASSES = ["fox", "Ant", "hen", "ibis"]
ALL_METHODS = (
    "student", "refilled", "refilled-two-stages", "refilled-few", "refilled-emb", "refilled-lkd",
    "refilled-minus", "refilled-gamma", "refilled-paper", "refilled-authors", "rkd", "sp", "aml", "seed",
    "seed-supervised", "crd",
)  # fmt: skip
SAME_CLASSES = ("kd", "kd-standardised", "dkd", "dist", "ban")
TWO_STAGES = (
    "refilled", "refilled-two-stages", "refilled-emb", "refilled-minus", "refilled-paper", "refilled-authors",
    "rkd", "aml", "seed", "seed-supervised",
)  # fmt: skip
TEACHER_FIRST = ("sskd",)  # their first stage trains nothing of the student
FEATURE_METHODS = ("fitnet", "at", "nst", "vid", "kd-vid", "overhaul", "jacobian")
EMBEDDING_METHODS = ("aml", "seed", "seed-supervised", "crd", "sskd", "ban")
OTHERS = ("refilled-stage1", "refilled-kd", "fine-tune", "ewc")
POSTERIORS = ("dot", "scaled", "cosine", "literal")
WEIGHTS = ("head", "pl", "gap", "none")


def tiny(spec: str, classes: list[str], seed: int = 0) -> Network:
    """A small network for 8 x 8 images of three channels, with lively batch normalisation.

    The statistics and scales of a fresh network are zeros and ones: a teacher whose evaluation mode was
    forgotten, or whose scores are nearly all the same, would go unnoticed.
    """
    torch.manual_seed(seed)
    network = load(spec, classes, image_size=8)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 3.0)
            nn.init.uniform_(layer.running_mean, -0.2, 0.2)
            nn.init.uniform_(layer.running_var, 0.5, 2.0)
    return network


def make_teacher(classes: list[str] = TEACHER_CLASSES, seed: int = 1) -> Network:
    """A teacher in evaluation mode with embeddings of length 128; its parameters could still be trained.

    Its head is toned down: the weights of a head that is always sure differ by rounding only.
    """
    teacher = tiny("wrn-10-2", classes, seed).eval()
    with torch.no_grad():
        teacher.head.weight.mul_(0.2)
    return teacher


def make_student(classes: list[str] = STUDENT_CLASSES, seed: int = 2) -> Network:
    """A student in training mode with embeddings of length 64."""
    return tiny("convnet-1", classes, seed).train()


def make_batches(size: int = 24, classes: int = 4, batch_size: int = 12, **settings) -> Batches:
    """Random images; the classes are of different sizes, and each of them is there."""
    generator = torch.Generator().manual_seed(size)
    labels = torch.cat(
        [torch.arange(classes), torch.randint(0, classes, (size - classes,), generator=generator)]
    )
    noise = torch.randint(0, 120, (size, 3, 8, 8), generator=generator)
    patterns = torch.randint(0, 136, (classes, 3, 8, 8), generator=generator)
    return Batches((noise + patterns[labels]).to(torch.uint8), labels, batch_size, **settings)


def first_batch(batches: Batches) -> Batch:
    """One shuffled training batch."""
    return next(iter(batches.epoch(0)))


def make_stages(
    name: str, teacher: Network | None, student: Network, batches: Batches, epochs: int = 4, **settings
) -> list[Stage]:
    """Stages of a method by its name, with some of its settings changed."""
    method = get_method(name)
    return method.stages(teacher, student, batches, method.settings(**settings), epochs)


def values(stage: Stage, batch: Batch) -> dict[str, float]:
    """Loss terms as numbers."""
    return {name: term.item() for name, term in stage.loss(batch).items()}


def gradients(total: Tensor, network: Network) -> dict[str, Tensor | None]:
    """Gradient of a loss for each parameter by its name; None where there is none."""
    network.zero_grad(set_to_none=True)
    total.backward()
    return {name: copy.deepcopy(parameter.grad) for name, parameter in network.named_parameters()}


def state(network: Network) -> dict[str, Tensor]:
    """A copy of all weights and buffers."""
    return {name: value.clone() for name, value in network.state_dict().items()}


def same_state(network: Network, before: dict[str, Tensor]) -> bool:
    """Whether no weight and no buffer has changed by a single bit."""
    now = network.state_dict()
    return now.keys() == before.keys() and all(torch.equal(now[name], before[name]) for name in before)
