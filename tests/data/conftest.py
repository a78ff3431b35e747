"""Folders of images for the tests of readers."""

from collections.abc import Callable
from pathlib import Path

import pytest
from image_files import save_image

Layout = dict[str, int]


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Layout], Path]:
    """``photos({"cat": 3})`` makes photos/cat/0.png ... below the current folder and returns ``photos``."""
    monkeypatch.chdir(tmp_path)

    def make(layout: Layout) -> Path:
        root = Path("photos")
        root.mkdir(exist_ok=True)
        for folder, count in layout.items():
            (root / folder).mkdir(parents=True, exist_ok=True)
            for index in range(count):
                save_image(root / folder / f"{index}.png", seed=100 * len(folder) + index)
        return root

    return make
