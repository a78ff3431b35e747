"""A training that has no run folder and can go on nevertheless."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refilled.training.checkpoint import checkpoint_of, is_checkpoint_of
from refilled.training.metrics import METRICS


@dataclass(frozen=True)
class Begun:
    """Where it has its checkpoint, and by what it is known.

    Args:
        folder: of the checkpoint and the metrics.
        identity: all that decides what comes out, the data apart.
    """

    folder: Path
    identity: str

    def plan(self, facts: dict[str, Any]) -> str:
        """What the training is, with those facts of its data."""
        return json.dumps({"identity": self.identity, "data": facts}, sort_keys=True)

    def goes_on(self, plan: str) -> bool:
        """Whether there is a checkpoint of that plan; a damaged one, or another training's, is deleted."""
        if is_checkpoint_of(checkpoint_of(self.folder), plan):
            return True
        shutil.rmtree(self.folder / "checkpoint", ignore_errors=True)
        (self.folder / METRICS).unlink(missing_ok=True)
        return False
