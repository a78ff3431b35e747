"""Episodic training over the seen classes, for methods that learn an embedding to compare with."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from refilled.checks import check_choices, check_number
from refilled.data import Progress
from refilled.data.augment import draw_views, show
from refilled.data.randomness import mixed_seed, seeded_generator
from refilled.fewshot.episodes import Episodes
from refilled.fewshot.views import Pool
from refilled.models import Network
from refilled.objectives.precision import full_precision
from refilled.training.replay import Replayed
from refilled.training.settings import Precision, autocast_dtype

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
    precision: Precision = "auto"
    """Of the network; losses are always float32. auto is bfloat16 on a GPU, else float32."""

    def __post_init__(self) -> None:
        check_choices(self)
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
    methods; afterwards the network is in evaluation mode, where it uses the running ones. On a CUDA device
    an episode is the replay of one captured graph.

    Args:
        network: usually trained on the seen classes already.
        fresh: modules that the loss uses.
        seen: images of the seen classes.
        loss: of an episode; it asks the device for nothing, or no graph can hold it.
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
    groups = [{"params": network.backbone_parameters()}]
    groups += [{"params": list(module.train().parameters())} for module in fresh]
    optimiser = torch.optim.SGD(
        groups,
        lr=settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        nesterov=settings.momentum > 0,
        fused=True if network.device.type == "cuda" else None,
    )
    dtype = autocast_dtype(settings.precision, network.device)

    def step(rows: Tensor, views: Tensor, rates: Tensor) -> None:
        """Learn from an episode: rows [ways, shots + queries] and a view of each; rates [groups]."""
        for group, rate in zip(optimiser.param_groups, rates):
            group["lr"] = rate
        images = show(seen.images[rows.flatten()], settings.augment, views)
        with torch.autocast(images.device.type, dtype, enabled=dtype is not None):
            z = network.embed(images)
        z = full_precision(z).unflatten(0, rows.shape)
        optimiser.zero_grad()
        loss(z[:, : settings.shots], z[:, settings.shots :]).backward()
        optimiser.step()

    replayed = Replayed(step, [network, *fresh], optimiser)
    falling = _falling(settings, len(fresh)).to(network.device)
    side = (seen.images.shape[2], seen.images.shape[3])
    with torch.random.fork_rng(devices=[network.device] if network.device.type == "cuda" else []):
        torch.manual_seed(mixed_seed(settings.seed, _OF_META_VIEWS))  # for dropout
        for number in range(settings.episodes):
            rows = episodes.draw(number, 1).rows[0]
            generator = seeded_generator(settings.seed, _OF_META_VIEWS, number, device=rows.device)
            views = draw_views(settings.augment, rows.numel(), side, generator, rows.device)
            replayed(rows, views, falling[number])
            if progress is not None:
                progress(number + 1, settings.episodes)
    for module in (network, *fresh):
        module.eval().requires_grad_(False)


def _falling(settings: MetaTraining, fresh: int) -> Tensor:
    """Learning rates float32 [episodes, 1 + fresh] of the network and of modules beside it."""
    shares = [
        0.5 * (1 + math.cos(math.pi * number / settings.episodes)) for number in range(settings.episodes)
    ]
    first = [settings.lr] + [settings.fresh_lr] * fresh
    return torch.tensor([[rate * share for rate in first] for share in shares])
