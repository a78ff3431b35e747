"""The ledger: every finished run is one line of JSON; tables are rendered from it, nothing is typed in."""

import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import torch

from refilled.errors import UserError
from refilled.suite.kinds import AnyCell, key_of
from refilled.suite.records import check_record
from refilled.version import __version__

try:
    import fcntl
except ImportError:  # Windows: appending one line with one write is all there is
    fcntl = None  # type: ignore[assignment]

_TAIL = 500
"""Bytes by which the end of what was read is known again: a record says when it was made."""


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
        commit()  # as it is now, while the code that will measure is being read
        self._forget()
        if path.is_dir():
            raise UserError(f"{path} is a folder; a ledger is a file of JSON lines")
        self.refresh()

    def _forget(self) -> None:
        """Nothing was read."""
        self.records: list[dict[str, Any]] = []
        self.broken: list[Broken] = []
        self._by_key: dict[str, list[dict[str, Any]]] = {}
        self._offset, self._line = 0, 0  # what was read: bytes, and lines before them
        self._tail = b""
        """The end of what was read."""

    def refresh(self) -> None:
        """Take what other processes have appended since the file was read."""
        if self.path.exists():
            with open(self.path, "rb") as file:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_SH)  # nobody is in the middle of a line
                self._read(file)

    def _read(self, file: BinaryIO) -> None:
        """Everything from where the last reading ended; all of it where that is no longer the end of what
        was read: it is another file, as a checkout may put in its place."""
        file.seek(self._offset - len(self._tail))
        if file.read(len(self._tail)) != self._tail:
            self._forget()
            file.seek(0)
        content = file.read()
        for number, line in enumerate(content.split(b"\n"), start=self._line + 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                record["key"] = key_of(record["cell"])
                check_record(record)
                self._take(record)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UserError) as problem:
                self.broken.append(Broken(number, f"{type(problem).__name__}: {problem}"))
        self._went_past(content)

    def _went_past(self, content: bytes) -> None:
        """That much more is known."""
        self._offset += len(content)
        self._line += content.count(b"\n")
        self._tail = (self._tail + content)[-_TAIL:]

    def notes(self) -> list[str]:
        """A line for each record that could not be read."""
        return [
            f"{self.path}, line {broken.line} is no record ({broken.reason}); it is left as it is"
            for broken in self.broken
        ]

    def _take(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        self._by_key.setdefault(record["key"], []).append(record)

    def of(self, cell: AnyCell) -> dict[str, Any] | None:
        """What was measured of a cell, in one record; it may be a part of it. None: nothing."""
        return cell.merged(self._by_key.get(cell.key, []))

    def has(self, cell: AnyCell) -> bool:
        """Whether that cell was finished before."""
        record = self.of(cell)
        return record is not None and cell.is_whole(record)

    def find(self, cells: Iterable[AnyCell], measure: str | None = None) -> list[dict[str, Any]]:
        """What was measured of those cells, a record for each of which there is one, in their order; where a
        measure is named, of those of which that is known."""
        found = [record for record in map(self.of, cells) if record is not None]
        return [record for record in found if measure is None or record.get(measure) is not None]

    def filed(self, described: dict[str, Any]) -> list[dict[str, Any]]:
        """All records of a cell that is described as in a record, the oldest first."""
        return self._by_key.get(key_of(described), [])

    def append(self, cell: AnyCell, measured: dict[str, Any], device: torch.device) -> dict[str, Any]:
        """Add a finished cell, or a part of one, in one write that no other process can come between."""
        record = {"key": cell.key, "cell": cell.to_json(), **measured, **_circumstances(device)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = (json.dumps(record) + "\n").encode()
        with open(self.path, "ab+") as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
            self._read(file)
            file.seek(0, os.SEEK_END)
            if file.tell() and _last_byte(file) != b"\n":  # a crash cut the last line short: leave it
                line = b"\n" + line
            file.write(line)
            file.flush()
            self._went_past(line)
        self._take(json.loads(line))
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


@cache
def commit() -> str:
    """Commit of the working tree that this package lies in, with ``+`` where files differ from it, as it was
    at the first call: files that change later are not what a process runs."""
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
