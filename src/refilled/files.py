"""Files that are written whole or not at all, and JSON that is what it should be."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from refilled.errors import UserError


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then put it in place in one move."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())  # mkstemp's files are for the owner alone
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""

    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8")

    write_atomically(path, write)


def write_json(path: Path, data: Any) -> None:
    """Write JSON for people: indented, non-ASCII as it is, atomically."""
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    write_text(path, text)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; anything else is refused, naming the file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path} as JSON: {error}") from error
    if not isinstance(data, dict):
        raise UserError(f"{path} should hold a JSON object, not a {type(data).__name__}")
    return data
