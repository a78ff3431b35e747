"""The run folder: what a run leaves behind, enough to resume, evaluate and reproduce it. No pickles."""

import json
import platform
import sys
from pathlib import Path
from typing import Any

import torch

import refilled
from refilled.errors import UserError
from refilled.files import write_json

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
    filled = path.is_dir() and any(path.iterdir())
    if filled and not resume:
        raise UserError(
            f"{path} exists already; choose another --out, or add --resume to go on with that run"
        )
    if filled:
        before = read_json(path / CONFIG)
        changed = _differences(before.get("run", {}), json.loads(json.dumps(config)))
        if changed:
            raise UserError(
                f"{path} was started with other settings ({'; '.join(changed[:3])}); use another --out"
            )


def start_run_folder(path: Path, config: dict[str, Any]) -> None:
    """Make the folder and write its ``config.json``, where it is not there already."""
    if (path / CONFIG).exists():
        return
    about = {
        "refilled": refilled.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    command = (
        " ".join(["refilled", *sys.argv[1:]]) if Path(sys.argv[0]).stem in ("refilled", "__main__") else None
    )
    write_json(path / CONFIG, {"format": 1, "run": config, "versions": about, "command": command})


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file of a run folder; a damaged or missing one is named."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path.parent} is no run folder: it has no {path.name}") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise UserError(f"{path} is damaged: it is no JSON") from None


def _differences(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            found += _differences(old, new, f"{prefix}{name}.")
        elif old != new:
            found.append(f"{prefix}{name} was {old}, is now {new}")
    return found
