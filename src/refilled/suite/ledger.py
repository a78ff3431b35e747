"""The ledger: every finished run is one line of JSON; tables are rendered from it, nothing is typed in."""

import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from refilled.errors import UserError
from refilled.suite.cell import Cell, key_of
from refilled.version import __version__

try:
    import fcntl
except ImportError:  # Windows: appending one line with one write is all there is
    fcntl = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Broken:
    """A line that is no record; it is named, kept, and never rewritten."""

    line: int
    reason: str


class Ledger:
    """Records of finished cells in one file; several processes may append at once.

    Args:
        path: the file; it need not be there yet.
    """

    def __init__(self, path: Path):
        self.path = path
        self.records: list[dict[str, Any]] = []
        self.broken: list[Broken] = []
        if path.is_dir():
            raise UserError(f"{path} is a folder; a ledger is a file of JSON lines")
        if path.exists():
            self._read()

    def _read(self) -> None:
        for number, line in enumerate(self.path.read_bytes().split(b"\n"), start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                record["key"] = key_of(record["cell"])
                if not isinstance(record["test_accuracy"], float):
                    raise TypeError("test_accuracy is no number")
                self.records.append(record)
            except (ValueError, KeyError, TypeError, AttributeError) as problem:
                self.broken.append(Broken(number, f"{type(problem).__name__}: {problem}"))

    def notes(self) -> list[str]:
        """A line for each record that could not be read."""
        return [
            f"{self.path}, line {broken.line} is no record ({broken.reason}); it is left as it is"
            for broken in self.broken
        ]

    def has(self, cell: Cell) -> bool:
        """Whether that cell was finished before."""
        return any(record["key"] == cell.key for record in self.records)

    def find(self, cells: Iterable[Cell]) -> list[dict[str, Any]]:
        """The records of those cells that are there, one for each, in their order."""
        by_key = {record["key"]: record for record in self.records}
        return [by_key[cell.key] for cell in cells if cell.key in by_key]

    def append(self, cell: Cell, measured: dict[str, Any], device: torch.device) -> dict[str, Any]:
        """Add a finished cell, in one write that no other process can come between."""
        record = {"key": cell.key, "cell": cell.to_json(), **measured, **_circumstances(device)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = (json.dumps(record) + "\n").encode()
        with open(self.path, "ab+") as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0, os.SEEK_END)
            if file.tell() and _last_byte(file) != b"\n":  # a crash cut the last line short: leave it
                line = b"\n" + line
            file.write(line)
            file.flush()
        self.records.append(json.loads(line))
        return record


def _last_byte(file: Any) -> bytes:
    file.seek(-1, os.SEEK_END)
    return file.read(1)


def _circumstances(device: torch.device) -> dict[str, Any]:
    """Where and with what a number was measured."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"
    return {
        "device": name,
        "commit": commit(),
        "versions": {
            "refilled": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def commit() -> str:
    """Commit of the working tree that this package lies in, with ``+`` where files differ from it."""
    if named := os.environ.get("REFILLED_COMMIT"):
        return named
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
