"""Where the decoded images of a run are held: in the device's memory, or on disk."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from refilled.data import FilePixels, ImageSet, Progress, load_set
from refilled.data.cache import cache_images
from refilled.data.memory import available_bytes, size_text
from refilled.data.source import Resident, Source
from refilled.data.streamed import Streamed
from refilled.errors import UserError
from refilled.runs.settings import DataSettings

_LARGEST_SHARE = 0.5  # of the free memory


@dataclass(frozen=True)
class Holding:
    """What was decided."""

    streamed: bool
    cache: Path | None
    """Folder of the decoded images; None: they are decoded into memory."""
    note: str
    """One line for the person where they are streamed, else empty."""

    def load(
        self, part: ImageSet, size: int, device: torch.device, progress: Progress | None = None
    ) -> tuple[Source, Tensor, int]:
        """A part's images and its labels int64 [M], on the device, and how many images were skipped."""
        if self.cache is None or not isinstance(part.pixels, FilePixels):
            images, labels, skipped = load_set(part, size, progress)
            return Resident(images.to(device)), labels.to(device), skipped
        cached, rows = cache_images(part.pixels, size, self.cache, progress)
        source = Streamed(cached, device) if self.streamed else Resident(cached.load().to(device))
        return source, part.labels[rows].to(device), len(part) - len(rows)


@contextmanager
def choose_holding(
    name: str,
    parts: Sequence[ImageSet],
    size: int,
    settings: DataSettings,
    device: torch.device,
    cache_folder: Path | None = None,
    *,
    copies: int = 1,
) -> Iterator[Holding]:
    """Decide where images are held; parts are loaded within the ``with``.

    Args:
        name: what the data is called.
        parts: all images that will be held at the same time.
        size: side of the images.
        settings: ``pixels`` forces it, ``cache`` is the folder for decoded images.
        device: where they are needed.
        cache_folder: where decoded images are kept if the settings name no folder and they are streamed;
            None: in a temporary file that is gone when the process ends.
        copies: how many times they would be in memory.
    """
    files = [part.pixels for part in parts if isinstance(part.pixels, FilePixels)]
    asked = Path(settings.cache).expanduser() if settings.cache else None
    if not files:
        if settings.pixels == "stream":
            raise UserError(f"{name} is in memory already; --pixels stream is for folders of image files")
        yield Holding(False, None, "")
        return
    sizes = [len(pixels) * pixels.channels * size**2 for pixels in files]
    why = _why_streamed([copies * size for size in sizes], device)
    if settings.pixels == "memory" or (settings.pixels == "auto" and not why):
        yield Holding(False, asked, "")
        return
    folder = asked or cache_folder
    temporary = Path(tempfile.mkdtemp(prefix="refilled-")) if folder is None else None
    where = f"a temporary file in {temporary.parent}" if temporary else f"the cache in {folder}"
    images = f"{sum(map(len, files)):,} images of {size} pixels are {size_text(sum(sizes))}"
    try:
        yield Holding(True, folder or temporary, f"{images}{why}: they are streamed from {where}")
    finally:
        if temporary:  # what is open stays readable, and is gone from the disk with the process
            shutil.rmtree(temporary, ignore_errors=True)


def _why_streamed(sizes: Sequence[int], device: torch.device) -> str:
    """Why parts of that many bytes are not held in memory, to go on a sentence; empty where they are."""
    host = available_bytes()
    needs = [(host, sum(sizes), "")]
    if device.type == "cuda":  # on its way there, one part at a time is in the computer's own memory
        needs = [(torch.cuda.mem_get_info(device)[0], sum(sizes), " on the GPU"), (host, max(sizes), "")]
    for free, needed, where in needs:
        if free is not None and needed > _LARGEST_SHARE * free:
            return f", more than half of the {size_text(free)} that are free{where}"
    return ""
