"""What the methods that match feature maps share: which maps belong together, and layers between them."""

import copy
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from refilled.data import Batch
from refilled.errors import UserError
from refilled.methods.stage import Stage
from refilled.models import Network

Look = Callable[[Network, Tensor], tuple[list[Tensor], Tensor]]
"""From a network and images to maps [B, C, H, W] and embeddings [B, dim]."""
Pairs = list[tuple[Tensor, Tensor]]
"""Maps of student and teacher that belong together."""

_Item = TypeVar("_Item")
_Other = TypeVar("_Other")

after_activation: Look = Network.features_and_embedding
before_activation: Look = Network.responses_and_embedding


def paired(student: Sequence[_Item], teacher: Sequence[_Other]) -> list[tuple[_Item, _Other]]:
    """Pairs from the last stage backwards: where one network has more stages, its first ones have none."""
    count = min(len(student), len(teacher))
    return list(zip(student[len(student) - count :], teacher[len(teacher) - count :]))


def black_image(network: Network, side: int | None = None) -> Tensor:
    """One image [1, channels, side, side] where the network is; None: of the side that it wants."""
    side = side or network.preprocess.size or 32
    return torch.zeros(1, network.preprocess.channels, side, side, device=network.device)


def look_at_nothing(network: Network, look: Look = after_activation, side: int | None = None) -> list[Tensor]:
    """Maps of one black image, for their shapes; raises ValueError where the network has none.

    The network stays as it is: a copy of it, in evaluation mode, does the work.

    Args:
        network: student or teacher.
        look: which maps.
        side: of the image in pixels; None: as the network wants it.
    """
    return look(copy.deepcopy(network).eval(), black_image(network, side))[0]


def channels(network: Network, look: Look = after_activation) -> list[int]:
    """Number of channels of each map."""
    with torch.no_grad():
        return [maps.shape[1] for maps in look_at_nothing(network, look)]


def maps_for(method: str, look: Look = after_activation) -> Callable[[Network, Network], None]:
    """The check of a method: refuse a network without the maps that it compares."""
    what = "feature maps" if look is after_activation else "feature maps before their activation"
    instead = "rkd or refilled" if look is after_activation else "at, rkd or refilled"

    def check(teacher: Network, student: Network) -> None:
        for role, network in (("teacher", teacher), ("student", student)):
            try:
                channels(network, look)
            except ValueError as problem:
                raise UserError(
                    f"{method} compares {what}, and the {role} {network.spec} does not give any. "
                    f"Use --method {instead}, or another {role}"
                ) from problem

    return check


def features_stage(
    teacher: Network,
    student: Network,
    name: str,
    term: Callable[[Pairs], Tensor],
    epochs: int,
    beside: nn.Module | None = None,
    look: Look = after_activation,
) -> list[Stage]:
    """One stage for the whole student: cross-entropy on its own labels, and a term over paired maps.

    Args:
        teacher: frozen, in evaluation mode.
        student: all of it is trained.
        name: of the term.
        term: from pairs of maps to a scalar, weighted.
        epochs: of the stage.
        beside: layers that are trained with the student.
        look: which maps.
    """

    def loss(batch: Batch) -> dict[str, Tensor]:
        maps, embeddings = look(student, batch.images)
        with torch.no_grad():
            wanted, _ = look(teacher, batch.images)
        logits = student.classify(embeddings)
        return {
            "cross_entropy": F.cross_entropy(logits.float(), batch.labels),
            name: term(paired(maps, wanted)),
        }

    trained = [*student.parameters(), *(beside.parameters() if beside is not None else ())]
    return [Stage("classifier", epochs, trained, loss, beside=beside)]
