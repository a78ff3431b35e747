"""The run folder: what a run leaves behind, enough to resume, evaluate and reproduce it. No pickles."""

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import torch

from refilled.errors import UserError
from refilled.files import read_json, write_json
from refilled.version import __version__

CONFIG, RESULT = "config.json", "result.json"


def check_run_folder(path: Path, config: dict[str, Any], resume: bool) -> None:
    """Refuse a folder that holds anything, unless it is the same run that goes on; nothing is written.

    Args:
        path: the folder.
        config: what the run is, as plain data.
        resume: go on with what is there; a folder that is not there yet is started.
    """
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; choose another --out")
    if not path.is_dir() or all(entry.name == "cache" for entry in path.iterdir()):  # decoded images
        _check_writable(path)
        return
    if not resume:
        raise UserError(
            f"{path} exists already; choose another folder (--out), or go on with that run (--resume)"
        )
    before = read_run_file(path / CONFIG).get("run")
    changed = _differences(before if isinstance(before, dict) else {}, json.loads(json.dumps(config)))
    if changed:
        raise UserError(
            f"{path} was started with other settings ({'; '.join(changed[:3])}); use another --out"
        )


def begun_run(path: str | Path | None) -> dict[str, Any]:
    """What the run is that has begun in a folder, as its ``config.json`` describes it; {} where none has."""
    config = Path(path).expanduser() / CONFIG if path is not None else None
    run = read_run_file(config).get("run") if config is not None and config.is_file() else None
    return run if isinstance(run, dict) else {}


def start_run_folder(path: Path, config: dict[str, Any], image_size: int, data: dict[str, Any]) -> None:
    """Make the folder and write its ``config.json``, where the run has not begun already.

    Args:
        path: the folder.
        config: what the run is.
        image_size: side of the images as they are held for both networks; evaluation holds them alike.
        data: facts of what it learns from, see :func:`refilled.runs.facts.data_facts`.
    """
    versions = {"refilled": __version__, "torch": torch.__version__, "python": platform.python_version()}
    as_typed = Path(sys.argv[0]).stem in ("refilled", "__main__")
    content = {
        "format": 1,
        "run": config,
        "image_size": image_size,
        "data": data,
        "versions": versions,
        "command": " ".join(["refilled", *sys.argv[1:]]) if as_typed else None,
    }
    if not (path / CONFIG).exists():
        write_json(path / CONFIG, content)


def _check_writable(path: Path) -> None:
    """Refuse a place that cannot be written to, before hours of training."""
    there = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not there.is_dir():
        raise UserError(f"cannot write to {path}: {there} is a file; choose another --out")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to {path}: {there} is read-only; choose another --out")


def read_run_file(path: Path) -> dict[str, Any]:
    """A JSON file of a run folder; without it the folder is none."""
    if not path.is_file():
        raise UserError(f"{path.parent} is no run folder: it has no {path.name}")
    return read_json(path)


def _differences(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            found += _differences(old, new, f"{prefix}{name}.")
        elif old != new:
            found.append(f"{prefix}{name} was {old}, is now {new}")
    return found
