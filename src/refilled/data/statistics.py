"""Mean and spread of pixel values, for normalisation."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from refilled.errors import UserError

_IMAGES_AT_ONCE = 256


def channel_statistics(images: Tensor | Iterable[Tensor]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, in units of 0 to 1.

    Sums are taken in whole numbers over small chunks: exact, and without a float copy of the set. A
    deviation is at least 1/255, so that it can be divided by even if all pixels are the same.

    Args:
        images: uint8 [N, C, H, W], N at least 1; or such tensors one after the other, of a set that is not
            in memory.

    Returns:
        C means and C deviations.
    """
    sums, squares, count = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), 0
    for chunk in _chunks(images):
        values = chunk.to(torch.int32)
        sums = sums.to(chunk.device) + values.sum(dim=(0, 2, 3), dtype=torch.int64)
        squares = squares.to(chunk.device) + values.square_().sum(dim=(0, 2, 3), dtype=torch.int64)
        count += values.numel() // values.shape[1]
    if not count:
        raise UserError("statistics need at least 1 image")
    means = [total / count for total in sums.tolist()]
    variances = [total / count - mean**2 for total, mean in zip(squares.tolist(), means)]
    deviations = (max(variance, 1.0) ** 0.5 / 255 for variance in variances)
    return tuple(mean / 255 for mean in means), tuple(deviations)


def _chunks(images: Tensor | Iterable[Tensor]) -> Iterator[Tensor]:
    for part in [images] if isinstance(images, Tensor) else images:
        if part.dtype != torch.uint8 or part.ndim != 4 or not part.numel():
            kind = str(part.dtype).removeprefix("torch.")
            raise UserError(f"statistics need uint8 images [N >= 1, C, H, W], not {kind} {list(part.shape)}")
        yield from part.split(_IMAGES_AT_ONCE)
