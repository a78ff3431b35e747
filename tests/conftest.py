"""What tests of several rooms share."""

import os
from pathlib import Path

# Before torch is there: on small tensors several threads in several workers only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
from PIL import Image

from refilled.models.extras import import_extra


@pytest.fixture(scope="session")
def working_torchvision():
    """timm and transformers can be imported by name, as after the first model of either was loaded."""
    import_extra("timm", "timm")


def write_images(folder: Path, count: int, colour: int, side: int = 8) -> None:
    """Noisy images of about one colour, so that classes can be told apart; no two are the same."""
    folder.mkdir(parents=True, exist_ok=True)
    base = np.array([colour * 70 % 190, (colour * 110 + 60) % 190, (colour * 150 + 30) % 190])
    for index in range(count):
        noise = np.random.default_rng([colour, index]).integers(0, 64, (side, side, 3))
        Image.fromarray((base + noise).astype(np.uint8)).save(folder / f"{index}.png")


@pytest.fixture
def image_folder(tmp_path, monkeypatch):
    """``image_folder(["cat", "dog"])`` makes photos/cat/0.png … below the current folder; returns ``photos``.

    The current folder is a fresh one. ``counts`` and ``sides`` may be one number or one for each class.
    """
    monkeypatch.chdir(tmp_path)

    def make(classes, name="photos", counts=8, sides=8) -> Path:
        for number, name_of_class in enumerate(classes):
            count = counts if isinstance(counts, int) else counts[number]
            side = sides if isinstance(sides, int) else sides[number]
            write_images(Path(name) / name_of_class, count, number, side)
        return Path(name)

    return make


def snapshot(folder: Path = Path(".")) -> dict[str, bytes | None]:
    """Every file and folder below a folder with its content, to see whether anything changed."""
    return {str(p): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


@pytest.fixture(name="snapshot")
def snapshot_function():
    """The function that tells what is on disk."""
    return snapshot
