"""Neg-Cosine: Liu, Cao, Lin, Li, Zhang, Long, Hu: Negative Margin Matters, 2020
(https://arxiv.org/abs/2003.12060).

The network learns the seen classes by a softmax over cosines, with a margin that is negative: it forgives
the true class a little, which keeps embeddings less tied to the seen classes. A task then trains a softmax
over cosines, without margin, on the frozen embeddings of its support.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from refilled.checks import check_choices, check_number
from refilled.data import Batch, Batches, Progress
from refilled.fewshot.classifiers import TaskClassifier, centres
from refilled.fewshot.training import cross_entropies
from refilled.fewshot.views import Pool
from refilled.methods import Stage
from refilled.models import Network
from refilled.objectives.precision import full_precision
from refilled.training import Reporter, TrainSettings, train
from refilled.training.settings import Precision


@dataclass(frozen=True)
class NegCosineTraining:
    """How the network learns the seen classes."""

    epochs: int = 100
    batch_size: int = 128
    lr: float = 0.1
    """At the start; it falls to 0 along a cosine."""
    momentum: float = 0.9
    weight_decay: float = 5e-4
    margin: float = -0.02
    """Taken from the cosine of the true class."""
    scale: float = 30.0
    """Factor of the cosines."""
    augment: str = "crop-flip"
    seed: int = 0
    precision: Precision = "auto"
    """Of the network; the loss is always float32. auto is bfloat16 on a GPU, else float32."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_number("epochs", self.epochs, least=1)
        check_number("batch_size", self.batch_size, least=2)
        check_number("lr", self.lr, above=0)
        check_number("momentum", self.momentum, least=0, below=1)
        check_number("weight_decay", self.weight_decay, least=0)
        check_number("scale", self.scale, above=0)
        check_number("margin", self.margin, above=-2, below=2)


def margin_loss(z: Tensor, weights: Tensor, labels: Tensor, margin: float, scale: float) -> Tensor:
    """Cross-entropy of scale * (cosine - margin of the true class).

    Args:
        z: embeddings [B, dim].
        weights: of the classes [C, dim].
        labels: int64 [B].
        margin: negative for the paper's method, 0 for a plain softmax over cosines.
        scale: factor.
    """
    cosines = F.normalize(z, dim=1) @ F.normalize(weights, dim=1).T
    own = labels[:, None] == torch.arange(len(weights), device=labels.device)
    return F.cross_entropy(scale * (cosines - margin * own), labels)


def train_neg_cosine(
    network: Network, seen: Pool, settings: NegCosineTraining | None = None, progress: Progress | None = None
) -> None:
    """Train a network with a head for the seen classes, in place; the head's bias plays no part."""
    settings = settings or NegCosineTraining()
    batches = Batches(seen.images, seen.labels, settings.batch_size, settings.augment, settings.seed)
    head = network.head.weight
    assert isinstance(head, nn.Parameter)
    network.requires_grad_(True)

    def loss(batch: Batch) -> dict[str, Tensor]:
        z = network.embed(batch.images)
        with torch.autocast(z.device.type, enabled=False):  # bfloat16 tells few cosines apart
            value = margin_loss(full_precision(z), head, batch.labels, settings.margin, settings.scale)
        return {"cosine_softmax": value}

    stage = Stage("neg-cosine", settings.epochs, [*network.backbone_parameters(), head], loss)
    how = TrainSettings(
        epochs=settings.epochs, batch_size=settings.batch_size, lr=settings.lr, momentum=settings.momentum,
        weight_decay=settings.weight_decay, seed=settings.seed, precision=settings.precision,
    )  # fmt: skip
    reporter = None if progress is None else _Epochs(progress, settings.epochs)
    with torch.random.fork_rng(devices=[network.device] if network.device.type == "cuda" else []):
        train([stage], network, batches, how, reporter=reporter)
    network.requires_grad_(False)


class _Epochs(Reporter):
    """Tells of epochs alone."""

    def __init__(self, progress: Progress, epochs: int):
        self.progress, self.epochs = progress, epochs

    def epoch(self, record: dict[str, Any]) -> None:
        """So many are done."""
        self.progress(record["epoch"], self.epochs)


def cosine_softmax(steps: int = 100, lr: float = 0.01, scale: float = 30.0) -> TaskClassifier:
    """A softmax over cosines, trained on each task's support from the class means on, with momentum 0.9."""
    check_number("steps", steps, least=0)
    check_number("lr", lr, above=0)

    def classify(support: Tensor, labels: Tensor, queries: Tensor) -> Tensor:
        images = F.normalize(support.detach(), dim=2)
        weights = F.normalize(centres(images, labels), dim=2).requires_grad_()
        optimiser = torch.optim.SGD([weights], lr=lr, momentum=0.9)
        with torch.enable_grad():
            for _ in range(steps):
                logits = scale * images @ F.normalize(weights, dim=2).mT
                optimiser.zero_grad()
                cross_entropies(logits, labels).sum().backward()
                optimiser.step()
        with torch.no_grad():
            return (queries @ F.normalize(weights, dim=2).mT).argmax(dim=2)

    return classify
