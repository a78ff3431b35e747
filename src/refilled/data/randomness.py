"""Random numbers that depend on what is asked for, and on nothing else in the process."""

import hashlib

import torch


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
