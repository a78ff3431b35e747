"""Which method, where it is left to us: by how many images there are to learn from."""

from pathlib import Path
from typing import Any

from refilled.data import Splits
from refilled.labels import Overlap
from refilled.methods import get_method
from refilled.runs.folder import begun_run
from refilled.runs.settings import sort_settings
from refilled.runs.shared import Shared

AUTO = "auto"
MANY, FEW = "refilled", "refilled-few"
"""With many images of a class, and with few. Both have the same settings, with other defaults."""
FEW_IMAGES = 250
"""Fewer training images per class than this are few (results/few-images.md)."""
_ADVISED_UP_TO = 100
"""Training images per class, with which images without labels were seen to help (results/shots.md)."""


def advise(method: str, overlap: Overlap, per_class: float) -> str | None:
    """What a person should know of another method for these classes and this many images of each, or None."""
    if method != MANY or overlap.only_here or overlap.only_there or per_class < FEW_IMAGES:
        return None
    return (
        "the teacher knows just these classes: where that was measured, decoupled distillation "
        "(--method dkd) gained as much or more (results/README.md)"
    )


def choose_method(
    method: str,
    data: str | Path | Splits,
    out: str | Path | None,
    settings: dict[str, Any],
    shared: Shared,
) -> str:
    """The name of a method: the one that was asked for, or for ``auto`` the one that suits the data.

    Args:
        method: a name, or ``auto``.
        data: what is learnt from; it is opened, and no image is decoded.
        out: run folder; a run that has begun goes on with its own method.
        settings: of training, data and method, by name.
        shared: opens the data; what was chosen is left in its notes.
    """
    if method != AUTO:
        return method
    begun = begun_run(out).get("method")
    if begun in (MANY, FEW):
        return begun
    train_settings, data_settings, _ = sort_settings(get_method(MANY), settings)
    splits = shared.splits(data, data_settings, train_settings.seed)
    per_class = len(splits.train) / len(splits.classes)
    chosen, other = (FEW, MANY) if per_class < FEW_IMAGES else (MANY, FEW)
    shared.notes.append(
        f"{per_class:.0f} training images per class: method {chosen} (or choose --method {other})"
    )
    if per_class <= _ADVISED_UP_TO and not data_settings.has_unlabelled and splits.unlabelled is None:
        shared.notes.append(
            "so few show little of what the teacher knows: other images, without labels, may help much "
            "(--unlabelled FOLDER)"
        )
    return chosen
