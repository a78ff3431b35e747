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
