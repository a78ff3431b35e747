"""What runs the cells of one kind."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from refilled.suite.places import Places
from refilled.training import Reporter, Shares

Job = Generator[dict[str, Any] | None, None, None]
"""The run of a cell, step by step; a step gives what was measured, for the ledger, or nothing yet."""


@dataclass(frozen=True)
class Desk:
    """What runners work with."""

    places: Places
    """Of data and teachers."""
    device: torch.device
    together: int | None = None
    """How many at the same time; None: as suits the device."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of trainings, that say how and not what: ``compile``, ``step``."""
    reporter: Reporter = field(default_factory=Reporter)
    """Shows how far a long cell is."""
    shares: Shares = field(default_factory=Shares)
    """Of the time, of trainings that take turns."""
    keep_students: bool = False
    """In run folders, where figures look for them."""


class Runner(Protocol):
    """Runs cells of one kind on a desk; it may keep what the next cell can use."""

    at_once: int
    """How many cells take turns."""

    def check(self, cells: Sequence[Any]) -> None:
        """Refuse what cannot be run, before anything is trained."""

    def run(self, cell: Any, before: dict[str, Any] | None) -> Job:
        """The run of a cell, of which the ledger knows ``before``; its teachers are there."""
