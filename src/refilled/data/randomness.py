"""Random numbers that depend on what is asked for, and on nothing else in the process."""

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor


def mixed_seed(*parts: int) -> int:
    """One seed below 2**63 from several numbers; neighbouring numbers give unrelated seeds."""
    text = ",".join(str(int(part)) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def seeded_generator(*parts: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator on ``device`` whose numbers are a function of ``parts`` alone."""
    return torch.Generator(device=device).manual_seed(mixed_seed(*parts))


def seed_global(device: torch.device, *parts: int) -> None:
    """Seed the generators from which layers such as dropout draw by themselves, for work on ``device``.

    ``torch.manual_seed`` would do, but it goes round all kinds of devices, there or not: 0.2 ms, which in
    every step of a small network is too much.
    """
    seed = mixed_seed(*parts)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        number = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[number].manual_seed(seed)
    elif device.type != "cpu":
        torch.manual_seed(seed)


_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def counted(start: Tensor, shape: Sequence[int]) -> Tensor:
    """Random numbers that follow from where a count stands, on whatever device it is.

    Neither a generator nor the host is asked: a captured step can draw them, and steps of trainings beside
    each other need not wait for the one generator of a GPU. SplitMix64 (Steele, Lea, Flood: Fast Splittable
    Pseudorandom Number Generators, 2014).

    Args:
        start: int64 [], the number of the first; whoever draws again counts on from here.
        shape: how many.

    Returns:
        int64 of that shape, from 0 to 2**63 - 1.
    """
    numbers = start + torch.arange(1, math.prod(shape) + 1, device=start.device)
    bits = numbers * _signed(_STEP)  # int64 wraps around, as it should
    bits = (bits ^ _shifted(bits, 30)) * _signed(_FIRST)
    bits = (bits ^ _shifted(bits, 27)) * _signed(_SECOND)
    return _shifted(bits ^ _shifted(bits, 31), 1).view(*shape)


def _signed(bits: int) -> int:
    """The int64 with those 64 bits."""
    return bits - 2**64 if bits >= 2**63 else bits


def _shifted(bits: Tensor, places: int) -> Tensor:
    """Shifted to the right, with zeros from the left as for a number without a sign."""
    return (bits >> places) & (2 ** (64 - places) - 1)
