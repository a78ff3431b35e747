"""What may be wanted of a frozen network: an answer for each image, which depends on nothing else.

Such an answer can be computed once for each view of an image and looked up from then on.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from refilled.models.network import Network


class Wanted(Protocol):
    """A kind of answer; two that are equal are answered alike."""

    def __call__(self, network: Network, prepared: Tensor) -> Tensor:
        """Answers [B, width] of the network for prepared images [B, channels, H, W]."""
        ...

    def width(self, network: Network) -> int:
        """Numbers of an answer."""
        ...


@dataclass(frozen=True)
class Embeddings:
    """The embedding of each image."""

    def __call__(self, network: Network, prepared: Tensor) -> Tensor:
        """Embeddings [B, dim] of prepared images."""
        return network.embed_prepared(prepared)

    def width(self, network: Network) -> int:
        """Dimensions of the embedding."""
        return network.dim


EMBEDDINGS = Embeddings()
