"""Mean and spread of pixel values, for normalisation."""

import torch
from torch import Tensor

from refilled.errors import UserError

_IMAGES_AT_ONCE = 256


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, in units of 0 to 1.

    Sums are taken in whole numbers over small chunks: exact, and without a float copy of the set. A
    deviation is at least 1/255, so that it can be divided by even if all pixels are the same.

    Args:
        images: uint8 [N, C, H, W], N at least 1.

    Returns:
        C means and C deviations.
    """
    if images.dtype != torch.uint8 or images.ndim != 4 or not images.numel():
        kind = str(images.dtype).removeprefix("torch.")
        raise UserError(f"statistics need uint8 images [N >= 1, C, H, W], not {kind} {list(images.shape)}")
    sums = torch.zeros(images.shape[1], dtype=torch.int64, device=images.device)
    squares = torch.zeros_like(sums)
    for chunk in images.split(_IMAGES_AT_ONCE):
        values = chunk.to(torch.int32)
        sums += values.sum(dim=(0, 2, 3), dtype=torch.int64)
        squares += values.square_().sum(dim=(0, 2, 3), dtype=torch.int64)
    count = images.numel() // images.shape[1]
    means = [total / count for total in sums.tolist()]
    variances = [total / count - mean**2 for total, mean in zip(squares.tolist(), means)]
    deviations = (max(variance, 1.0) ** 0.5 / 255 for variance in variances)
    return tuple(mean / 255 for mean in means), tuple(deviations)
