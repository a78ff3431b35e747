"""What a run learns from, in a few facts: a run that goes on must find the same."""

import hashlib
from pathlib import Path
from typing import Any

from refilled.data import ImageSet, Splits
from refilled.errors import UserError
from refilled.runs.folder import CONFIG, read_run_file


def data_facts(splits: Splits, unlabelled: ImageSet | None = None) -> dict[str, Any]:
    """Classes, number of images of each part, and a digest of which images those are; those without labels
    are a part too, where there are any."""
    digest = hashlib.sha256()
    parts = {"training": splits.train, "validation": splits.val, "test": splits.test}
    if unlabelled is not None:
        parts["unlabelled"] = unlabelled
    for part in parts.values():
        digest.update(part.labels.numpy().tobytes())
        for path in getattr(part.pixels, "paths", ()):
            digest.update(f"{path.parent.name}/{path.name}\n".encode())
    return {
        "classes": list(splits.classes),
        "images": {name: len(part) for name, part in parts.items()},
        "digest": digest.hexdigest()[:16],
    }


def check_same_data(folder: Path, facts: dict[str, Any], data: str) -> None:
    """Refuse to go on in a run folder with other images than it began with."""
    if not (folder / CONFIG).is_file():
        return
    before = read_run_file(folder / CONFIG).get("data")
    if before is None or before == facts:  # the first run folders did not know
        return
    raise UserError(
        f"{data} is not what {folder} began with: {_difference(before, facts)}; put it back, or start a new "
        f"run (--out)"
    )


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    if before["classes"] != now["classes"]:
        gone = [name for name in before["classes"] if name not in now["classes"]]
        came = [name for name in now["classes"] if name not in before["classes"]]
        changes = (("without", gone), ("with", came))
        said = [f"{what} {', '.join(names[:3])}" for what, names in changes if names]
        return f"its classes have changed ({'; '.join(said) or 'their order'})"
    for name, count in before["images"].items():
        found = now["images"].get(name, 0)
        if found != count:
            return f"it had {count} {name} images, and has {found}"
    return "its images have changed"
