"""Sums over runs of a row: from its start, or between two places, without ever subtracting."""

from typing import Any

import torch
from torch import Tensor


def running_sums(values: Tensor) -> Tensor:
    """Sums of each row [b, n] up to and with each place."""
    if not (values.is_cuda and torch.are_deterministic_algorithms_enabled()):
        return values.cumsum(dim=1)
    step = 1  # cumsum on CUDA promises no fixed order of its additions; this scan does
    while step < values.shape[1]:
        values = values + torch.nn.functional.pad(values[:, :-step], (step, 0))
        step *= 2
    return values


def interval_sums(values: tuple[Tensor, ...], first: Tensor) -> list[Tensor]:
    """Sums over places first[i, k] ... k of each row, without ever subtracting.

    Differences of running sums would do, but lose everything where a window holds only values that are
    tiny beside the rest of the row. Instead, for every block size 2, 4, 8, ... take the sums from the
    middle of each block outwards: any interval is then the sum of two of those, left and right of the
    middle of the smallest block that holds it.

    Args:
        values: matrices [b, n].
        first: int64 [b, n]; an interval with first > k is empty and has sum 0.

    Returns:
        One matrix [b, n] of sums for each of ``values``.
    """
    last = torch.arange(first.shape[1], device=first.device).expand_as(first)
    left = torch.minimum(first, last)
    sums = [_IntervalSums.apply(value, left, left ^ last) for value in values]
    return [torch.where(first > last, 0.0, total) for total in sums]


class _IntervalSums(torch.autograd.Function):
    """Sums over places left[i, k] ... k; the highest bit of ``apart`` = left ^ k says which block's middle
    lies between the two. The backward pass is the transpose, and keeps no matrix but these."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, left: Tensor, apart: Tensor) -> Tensor:
        ctx.save_for_backward(left, apart)
        rows, n = value.shape
        padded = torch.nn.functional.pad(value, (0, _padded_size(n) - n))
        total = torch.where(apart == 0, value, 0.0)
        for half in _halves(n):
            halves = padded.view(rows, padded.shape[1] // (2 * half), 2, half)
            outwards = torch.stack((_back(halves[:, :, 0]), _on(halves[:, :, 1])), dim=2).view_as(padded)
            both = outwards.gather(1, left) + outwards[:, :n]
            total += torch.where(_splits_at(half, apart), both, 0.0)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,), (left, apart) = gradients, ctx.saved_tensors
        rows, n = gradient.shape
        size = _padded_size(n)
        result = torch.nn.functional.pad(torch.where(apart == 0, gradient, 0.0), (0, size - n))
        for half in _halves(n):
            part = torch.where(_splits_at(half, apart), gradient, 0.0)
            outwards = torch.nn.functional.pad(part, (0, size - n)).scatter_add(1, left, part)
            halves = outwards.view(rows, size // (2 * half), 2, half)
            result += torch.stack((_on(halves[:, :, 0]), _back(halves[:, :, 1])), dim=2).view_as(result)
        return result[:, :n], None, None


def _padded_size(n: int) -> int:
    return 1 << max(1, (n - 1).bit_length())


def _halves(n: int) -> list[int]:
    """1, 2, 4, ...: half the size of each kind of block."""
    return [1 << level for level in range(_padded_size(n).bit_length() - 1)]


def _splits_at(half: int, apart: Tensor) -> Tensor:
    return (apart >= half) & (apart < 2 * half)


def _on(x: Tensor) -> Tensor:
    """Running sums along the last dimension."""
    return running_sums(x.reshape(-1, x.shape[-1])).view(x.shape)


def _back(x: Tensor) -> Tensor:
    """Running sums from the end."""
    return _on(x.flip(-1)).flip(-1)
