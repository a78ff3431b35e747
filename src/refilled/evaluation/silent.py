"""Dimensions of an embedding that tell nothing."""

from torch import Tensor

_SAME = 1e-6
"""Differences below this share of the largest value are none."""


def silent_dimensions(embeddings: Tensor) -> int:
    """How many dimensions have the same value for all images: units that no longer answer to anything, most
    often after steps that were too large.

    Args:
        embeddings: [N, d]; without images none is silent.
    """
    if not len(embeddings):
        return 0
    values = embeddings.float()
    ranges = values.amax(dim=0) - values.amin(dim=0)
    return int((ranges <= _SAME * values.abs().max()).sum())
