"""Tiny image files, made on the spot."""

from pathlib import Path

import numpy as np
from PIL import Image


def save_image(path: Path, side: int = 12, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def bad_files(folder: Path) -> dict[str, Path]:
    """Four files that are no images: cut, text, empty and noise."""
    whole = save_image(folder / "whole.jpg", side=64).read_bytes()
    cut, noise = whole[: len(whole) // 2], bytes(range(256))
    contents = {"cut": cut, "text": b"not an image", "empty": b"", "noise": noise}
    paths = {}
    for name, content in contents.items():
        paths[name] = folder / f"{name}.jpg"
        paths[name].write_bytes(content)
    return paths


def near(actual: np.ndarray, expected: np.ndarray, by: float = 1.0) -> bool:
    return bool(np.abs(actual.astype(float) - expected).max() <= by)
