"""Elastic weight consolidation: weights that mattered for the old task are held where they were.

Kirkpatrick et al., Overcoming catastrophic forgetting in neural networks, 2017, Equation 3.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from refilled.objectives.precision import full_precision


def weight_consolidation(
    weights: Sequence[Tensor], old: Sequence[Tensor], fisher: Sequence[Tensor]
) -> Tensor:
    """Half the sum of F (w - w_old)² over all weights; the gradient goes to ``weights``.

    Args:
        weights: tensors of any shapes.
        old: their values when the old task had been learned.
        fisher: how much each mattered for it, the diagonal of the Fisher information; same shapes.

    Returns:
        Scalar.
    """
    parts = [
        (f * (full_precision(w) - o).square()).sum() for w, o, f in zip(weights, old, fisher, strict=True)
    ]
    return 0.5 * torch.stack(parts).sum()
