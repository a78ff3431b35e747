"""Direction: a prediction of the teacher's embedding points where that points, whatever their lengths."""

import torch
from torch import Tensor

from refilled.objectives.precision import full_precision
from refilled.objectives.unit import unit_rows


def direction_matching(predicted: Tensor, teacher: Tensor, weights: Tensor | None = None) -> Tensor:
    """Mean over the batch of 1 - cos(prediction, teacher's embedding): from 0, where they agree, to 2.

    Args:
        predicted: [B, d], the student's embeddings in the teacher's space; the gradient goes here.
        teacher: [B, d]; no gradient.
        weights: [B], how much each row counts in the sum, which is divided by B; None: 1 each. No gradient.

    Returns:
        Scalar; float64 for float64 predictions, else float32. A row of zeros has no direction: it counts 1
        and passes no gradient. An empty batch gives 0.
    """
    if predicted.ndim != 2 or predicted.shape != teacher.shape:
        raise ValueError(
            f"predictions and the teacher's embeddings must have one shape [B, d], not "
            f"{list(predicted.shape)} and {list(teacher.shape)}"
        )
    if weights is not None and weights.shape != predicted.shape[:1]:
        raise ValueError(
            f"weights must have shape [B] with B = {len(predicted)} rows, not {list(weights.shape)}"
        )
    with torch.autocast(predicted.device.type, enabled=False):
        predicted = full_precision(predicted)
        wanted = unit_rows(teacher.detach().to(predicted.dtype))
        cosines = (unit_rows(predicted) * wanted).sum(dim=1)
        apart = 1 - cosines if weights is None else weights.detach().to(predicted.dtype) * (1 - cosines)
        return apart.sum() / max(len(apart), 1)
