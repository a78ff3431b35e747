"""Direction: a prediction of the teacher's embedding points where that points, whatever their lengths."""

import torch
from torch import Tensor

from refilled.objectives.precision import full_precision
from refilled.objectives.unit import unit_rows


def direction_matching(predicted: Tensor, teacher: Tensor) -> Tensor:
    """Mean over the batch of 1 - cos(prediction, teacher's embedding): from 0, where they agree, to 2.

    Args:
        predicted: [B, d], the student's embeddings in the teacher's space; the gradient goes here.
        teacher: [B, d]; no gradient.

    Returns:
        Scalar; float64 for float64 predictions, else float32. A row of zeros has no direction: it counts 1
        and passes no gradient. An empty batch gives 0.
    """
    if predicted.ndim != 2 or predicted.shape != teacher.shape:
        raise ValueError(
            f"predictions and the teacher's embeddings must have one shape [B, d], not "
            f"{list(predicted.shape)} and {list(teacher.shape)}"
        )
    with torch.autocast(predicted.device.type, enabled=False):
        predicted = full_precision(predicted)
        wanted = unit_rows(teacher.detach().to(predicted.dtype))
        cosines = (unit_rows(predicted) * wanted).sum(dim=1)
        return (1 - cosines).sum() / max(len(cosines), 1)
