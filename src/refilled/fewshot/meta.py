"""Episodic training over the seen classes, for methods that learn an embedding to compare with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from refilled.checks import check_number
from refilled.data import Progress
from refilled.data.augment import augment
from refilled.data.randomness import mixed_seed, seeded_generator
from refilled.fewshot.episodes import Episodes
from refilled.fewshot.views import Pool
from refilled.models import Network

_OF_META_VIEWS = mixed_seed(0x6D657461)  # apart from all other draws of a seed


@dataclass(frozen=True)
class MetaTraining:
    """Tasks of the seen classes, one per step."""

    episodes: int = 20_000
    ways: int = 5
    shots: int = 5
    queries: int = 15
    lr: float = 0.002
    """At the start; it falls to 0 along a cosine."""
    fresh_lr: float = 0.02
    """Of what does not start from a trained network."""
    momentum: float = 0.9
    weight_decay: float = 5e-4
    augment: str = "crop-flip"
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("episodes", self.episodes, least=1)
        check_number("lr", self.lr, least=0)
        check_number("fresh_lr", self.fresh_lr, least=0)
        check_number("momentum", self.momentum, least=0, below=1)
        check_number("weight_decay", self.weight_decay, least=0)


EpisodeLoss = Callable[[Tensor, Tensor], Tensor]
"""Scalar of the embeddings of a task: support [ways, shots, dim] and queries [ways, queries, dim]."""


def meta_train(
    network: Network,
    fresh: Sequence[nn.Module],
    seen: Pool,
    loss: EpisodeLoss,
    settings: MetaTraining,
    progress: Progress | None = None,
) -> None:
    """Train the network's embedding, and modules beside it, on tasks of the seen classes, in place.

    Batch normalisation takes its statistics from all images of an episode, as in public code of these
    methods; afterwards the network is in evaluation mode, where it uses the running ones.

    Args:
        network: usually trained on the seen classes already.
        fresh: modules that the loss uses.
        seen: images of the seen classes.
        loss: of an episode.
        settings: how long and how fast.
        progress: called with (done, total).
    """
    episodes = Episodes(
        seen.labels,
        settings.shots,
        ways=settings.ways,
        queries=settings.queries,
        seed=settings.seed,
        classes=seen.classes,
    )
    network.train().requires_grad_(True)
    groups = [{"params": network.backbone_parameters(), "lr": settings.lr}]
    for module in fresh:
        groups.append({"params": list(module.train().parameters()), "lr": settings.fresh_lr})
    optimiser = torch.optim.SGD(
        groups, lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay, nesterov=True
    )
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, settings.episodes)
    with torch.random.fork_rng(devices=[network.device] if network.device.type == "cuda" else []):
        torch.manual_seed(mixed_seed(settings.seed, _OF_META_VIEWS))  # for dropout
        for number in range(settings.episodes):
            rows = episodes.draw(number, 1).rows[0]
            generator = seeded_generator(settings.seed, _OF_META_VIEWS, number, device=rows.device)
            images = augment(seen.images[rows.flatten()], settings.augment, generator)
            z = network.embed(images).unflatten(0, rows.shape)
            optimiser.zero_grad()
            loss(z[:, : settings.shots], z[:, settings.shots :]).backward()
            optimiser.step()
            falling.step()
            if progress is not None:
                progress(number + 1, settings.episodes)
    for module in (network, *fresh):
        module.eval().requires_grad_(False)
