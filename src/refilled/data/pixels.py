"""The two kinds of pixels: tensors that are there already, and files that are decoded once."""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import repeat
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from refilled.data.decode import BadImage, Box, decode, readable_formats, size_on_disk, square_around
from refilled.data.images import Progress
from refilled.data.memory import check_fits
from refilled.errors import UserError

_FILES_PER_TASK = 32
_IMAGES_PER_RESIZE = 512


class TensorPixels:
    """Images in memory. A selection is an index until it is loaded, and copied once then.

    Args:
        images: uint8 [N, C, side, side]
        rows: int64 [M], the images that are meant; all when not given.
    """

    def __init__(self, images: Tensor, rows: Tensor | None = None):
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[2] != images.shape[3]:
            kind = str(images.dtype).removeprefix("torch.")
            raise UserError(f"images must be uint8 [N, C, side, side], not {kind} {list(images.shape)}")
        self.images = images
        self.rows = rows
        self.channels = images.shape[1]

    def __len__(self) -> int:
        return len(self.images) if self.rows is None else len(self.rows)

    def select(self, rows: Sequence[int]) -> "TensorPixels":
        """Only those images, in that order; nothing is copied."""
        index = torch.as_tensor(rows, dtype=torch.int64)
        return TensorPixels(self.images, index if self.rows is None else self.rows[index])

    def load(self, size: int | None, progress: Progress | None = None) -> tuple[Tensor, Tensor]:
        """Images uint8 [M, C, size, size] and all their rows [M]; the tensor itself where it is asked for
        whole and in its own size."""
        side = self.images.shape[-1]
        if size is None or size == side:
            images = self.images if self.rows is None else self.images[self.rows]
        else:
            images = self._resized(checked_size(size))
        if progress:
            progress(len(self), len(self))
        return images, torch.arange(len(self))

    def _resized(self, size: int) -> Tensor:
        check_fits(len(self), self.images.shape[1], size)
        rows = torch.arange(len(self)) if self.rows is None else self.rows
        out = torch.empty((len(rows), self.images.shape[1], size, size), dtype=torch.uint8)
        for part, target in zip(rows.split(_IMAGES_PER_RESIZE), out.split(_IMAGES_PER_RESIZE)):
            floats = self.images[part].float()
            resized = F.interpolate(floats, (size, size), mode="bicubic", antialias=True, align_corners=False)
            target.copy_(resized.round_().clamp_(0, 255))
        return out


class FilePixels:
    """Image files, decoded when they are loaded.

    Args:
        paths: one file per image; errors show them as they are written here.
        boxes: what is shown of each image, as a square around it (see
            :func:`refilled.data.decode.square_around`), or None for its centre square; as many as paths.
        channels: 3 for colour, 1 for gray.
        skip_bad_images: leave files that cannot be read out, instead of stopping.
    """

    def __init__(
        self,
        paths: Iterable[Path],
        *,
        boxes: Iterable[Box | None] | None = None,
        channels: int = 3,
        skip_bad_images: bool = False,
    ):
        self.paths = tuple(paths)
        self.boxes = None if boxes is None else tuple(boxes)
        if self.boxes is not None and len(self.boxes) != len(self.paths):
            raise UserError(f"{len(self.paths)} images need as many boxes, not {len(self.boxes)}")
        self.channels = channels
        self.skip_bad_images = skip_bad_images

    def __len__(self) -> int:
        return len(self.paths)

    def select(self, rows: Sequence[int]) -> "FilePixels":
        """Only those files, in that order."""
        return FilePixels(
            (self.paths[row] for row in rows),
            boxes=None if self.boxes is None else (self.boxes[row] for row in rows),
            channels=self.channels,
            skip_bad_images=self.skip_bad_images,
        )

    def load(self, size: int | None, progress: Progress | None = None) -> tuple[Tensor, Tensor]:
        """Images uint8 [M, channels, size, size] and the rows [M] of the files that could be read.

        Every file is decoded once, straight into its place in the one tensor there is. Without a size
        the files, or what is shown of them, must all be squares of one size.
        """
        side = checked_size(size) if size is not None else self._own_side()
        check_fits(len(self), self.channels, side, streamable=True)
        images = torch.empty((len(self), self.channels, side, side), dtype=torch.uint8)
        good = self.readable(self._decode_into(images, progress))
        if len(good) == len(self):
            return images, good
        for place, row in enumerate(good.tolist()):  # close the gaps in place: a second tensor might not fit
            if place != row:
                images[place] = images[row]
        return images[: len(good)], good

    def readable(self, bad: dict[int, str]) -> Tensor:
        """The rows int64 [M] that are left without the bad ones, where those may be skipped.

        Args:
            bad: rows of the files that cannot be read, and why.
        """
        if not bad:
            return torch.arange(len(self))
        first = min(bad)
        files = "1 file" if len(bad) == 1 else f"{len(bad)} files"
        if not self.skip_bad_images:
            raise UserError(
                f"cannot read {self.paths[first]}: {bad[first]} ({files} of {len(self)} cannot be read); "
                f"mend or remove them, or leave them out with --skip-bad-images"
            )
        if len(bad) == len(self):
            raise UserError(f"none of the {len(self)} images can be read; {self.paths[first]}: {bad[first]}")
        return torch.tensor([row for row in range(len(self)) if row not in bad])

    def _own_side(self) -> int:
        side = common_side(self.paths, self.boxes)
        if side is None and self.paths:
            raise UserError("the images are not squares of one size; choose one with --image-size")
        return side or 0

    def _decode_into(self, images: Tensor, progress: Progress | None) -> dict[int, str]:
        """Fills ``images``; returns the rows that could not be read and why."""
        pixels = images.numpy()
        readable_formats()  # load the plugins before the threads race for them

        def decode_rows(rows: range) -> dict[int, str]:
            bad = {}
            for row in rows:
                try:
                    box = self.boxes[row] if self.boxes else None
                    pixels[row] = decode(self.paths[row], images.shape[-1], self.channels, box)
                except BadImage as error:
                    bad[row] = str(error)
            return bad

        tasks = [
            range(start, min(start + _FILES_PER_TASK, len(self)))
            for start in range(0, len(self), _FILES_PER_TASK)
        ]
        return _run_in_threads(decode_rows, tasks, progress)


def _run_in_threads(
    work: Callable[[range], dict[int, str]], tasks: list[range], progress: Progress | None
) -> dict[int, str]:
    total, done, results = sum(map(len, tasks)), 0, {}
    with ThreadPoolExecutor(worker_count()) as pool:  # Pillow lets go of the GIL while it decodes
        futures = {pool.submit(work, task): len(task) for task in tasks}
        try:
            for future in as_completed(futures):
                results.update(future.result())
                done += futures[future]
                if progress:
                    progress(done, total)
        except BaseException:  # Ctrl-C must not wait for the files that are left
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return results


def common_side(paths: Sequence[Path], boxes: Sequence[Box | None] | None = None) -> int | None:
    """Side of the images if all that can be read are squares of one size, else None.

    Where an image has a box, the square around it counts.
    """
    found: tuple[float, float] | None = None
    for path, box in zip(paths, boxes or repeat(None)):
        size = _shown_size(path, box)
        if size is not None:
            if size[0] != size[1] or (found is not None and size != found):
                return None
            found = size
    return int(found[0]) if found and found[0] == int(found[0]) else None


def _shown_size(path: Path, box: Box | None) -> tuple[float, float] | None:
    size = size_on_disk(path)
    if size is None or box is None:
        return size
    try:
        left, top, right, bottom = square_around(box, size)
    except BadImage:
        return None
    return right - left, bottom - top


def checked_size(size: int) -> int:
    """A side of images, as it is; one that makes no sense is refused."""
    if size < 1:
        raise UserError(f"an image size is a number of pixels from 1 up, not {size}")
    return size


def worker_count() -> int:
    """How many files are decoded at a time: one for each processor core that may be used."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
