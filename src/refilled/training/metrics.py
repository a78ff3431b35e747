"""``metrics.jsonl``: one line for each epoch, appended as it ends."""

import json
from pathlib import Path
from typing import Any

from refilled.files import write_text

METRICS = "metrics.jsonl"
"""Of a run folder."""


class MetricsLog:
    """Appends records to a file, or keeps nothing where there is no file.

    Args:
        path: the file, or None.
    """

    def __init__(self, path: Path | None):
        self.path = path

    def append(self, record: dict[str, Any]) -> None:
        """Add one line."""
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """All whole records; a last line that a crash cut short is left out."""
        if self.path is None or not self.path.exists():
            return []
        records = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                continue
        return records

    def rewind(self, stage: int, epoch: int) -> None:
        """Drop what lies after that many epochs of that stage: a resumed run writes it again."""
        if self.path is None or not self.path.exists():
            return
        kept = [r for r in self.read() if (r["stage_index"], r["epoch"]) <= (stage, epoch)]
        write_text(self.path, "".join(json.dumps(record) + "\n" for record in kept))
