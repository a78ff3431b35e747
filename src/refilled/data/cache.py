"""Decoded images on disk, so that no file is decoded twice.

An image is known by its file's resolved path, size and time, and by what is shown of it. So one folder
serves any parts, classes, shots and seeds; a file that was changed or added is decoded, and no other is. What
belonged to files as they were before stays until the folder is removed. Bad images are not remembered: a
permission, or a decoder that Pillow was built without, may be there next time.

One process at a time decodes into a file of a folder; others that lack images of the same size wait, and
find them there. Reading needs no lock (see ``pixel_file.py``).
"""

import hashlib
import math
import os
import shutil
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache
from itertools import repeat
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from refilled.data.decoders import decode_files
from refilled.data.images import Progress
from refilled.data.memory import check_fits, size_text
from refilled.data.pixel_file import KEY_BYTES, OpenPixels, PixelFile
from refilled.data.pixels import FilePixels, checked_size
from refilled.errors import UserError
from refilled.lock import locked

_SECONDS_BETWEEN_SAVES = 10.0  # what a killed process loses
_NO_BOX = (math.nan,) * 4


class CachedImages:
    """Images of a cache, in an order of their own: uint8 [N, channels, side, side].

    Args:
        pixels: the file of all images.
        places: where in it these are, int64 [N].
    """

    def __init__(self, pixels: OpenPixels, places: np.ndarray):
        self.pixels, self.places = pixels, places
        side = pixels.file.size
        self.shape = (len(places), pixels.file.channels, side, side)

    def read(self, rows: Tensor, out: Tensor) -> None:
        """Put the images of rows int64 [B] into ``out`` uint8 [B, channels, side, side], both on the CPU."""
        self.pixels.read(self.places[rows.numpy()].tolist(), out.numpy())

    def load(self) -> Tensor:
        """All of them in memory."""
        check_fits(*self.shape[:3], streamable=True)
        images = torch.empty(self.shape, dtype=torch.uint8)
        self.read(torch.arange(len(images)), images)
        return images


def cache_images(
    files: FilePixels, size: int, folder: Path, progress: Progress | None = None
) -> tuple[CachedImages, Tensor]:
    """Image files in their decoded form; those that the cache does not have are decoded into it.

    It may be interrupted at any time: what is decoded is kept.

    Args:
        files: which files, and what is shown of them.
        size: side of the squares.
        folder: of the cache, made where it is missing.
        progress: called with (done, total).

    Returns:
        The images that can be read, and their rows int64 [M] among the files. What cannot be read stops
        it or is skipped, as in :meth:`FilePixels.load`.
    """
    file = PixelFile(folder, checked_size(size), files.channels)
    keys = _keys(files)
    bad: dict[int, str] = {}
    opened, places = _look_up(file, keys)
    if opened is None or (places < 0).any():
        _check_space(file, int((places < 0).sum()))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with locked(file.lock, _watch(file, keys, progress), "--cache"):
                if file.open() is None:
                    file.start()
                bad = _decode_missing(file, files, keys, progress)
                opened, places = _look_up(file, keys)
        except OSError as error:
            raise UserError(
                f"cannot write the cache {folder}: {(error.strerror or str(error)).lower()}; "
                f"choose another folder with --cache"
            ) from error
    elif progress:
        progress(len(files), len(files))
    rows = files.readable(bad)
    places = places[rows.numpy()]
    if opened is None or (places < 0).any():
        raise UserError(f"{file.path} was changed by another program while it was written; start again")
    return CachedImages(opened, places), rows


def _look_up(file: PixelFile, keys: Sequence[bytes]) -> tuple[OpenPixels | None, np.ndarray]:
    opened = file.open()
    return opened, np.full(len(keys), -1) if opened is None else opened.find(keys)


def _decode_missing(
    file: PixelFile, files: FilePixels, keys: Sequence[bytes], progress: Progress | None
) -> dict[int, str]:
    """Adds the images that are not there; returns the rows that could not be read and why."""
    opened, places = _look_up(file, keys)
    assert opened is not None
    missing: dict[bytes, list[int]] = {}  # one file may be several rows
    for row in np.flatnonzero(places < 0).tolist():
        missing.setdefault(keys[row], []).append(row)
    done = int((places >= 0).sum())
    if progress:
        progress(done, len(files))
    if not missing:
        return {}
    rows = list(missing.values())
    first = file.extend(len(missing))
    known = np.zeros((first + len(rows), KEY_BYTES), dtype=np.uint8)
    known[: len(opened.keys)] = opened.keys
    jobs = [
        (str(files.paths[row]), files.boxes[row] if files.boxes else None, file.offset(first + number))
        for number, (row, *_) in enumerate(rows)
    ]
    bad: dict[int, str] = {}
    saved, end = time.monotonic(), first
    try:
        with closing(decode_files(file.path, jobs, file.size, file.channels)) as results:
            for task, reasons in results:
                for number, reason in zip(task, reasons):
                    if reason is None:
                        known[first + number] = np.frombuffer(keys[rows[number][0]], dtype=np.uint8)
                        end = max(end, first + number + 1)
                    else:
                        bad.update((row, reason) for row in rows[number])
                    done += len(rows[number])
                if progress:
                    progress(done, len(files))
                if time.monotonic() - saved > _SECONDS_BETWEEN_SAVES:
                    file.save(known[:end])
                    saved = time.monotonic()
    finally:  # also when it was interrupted
        file.cut(end)
        if end > first:
            file.save(known[:end])
    return bad


def _check_space(file: PixelFile, count: int) -> None:
    """Refuses that many more images where the disk has no room for them, before anything is written."""
    folder = file.path.parent
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    needed, free = count * file.image_bytes, shutil.disk_usage(there).free
    if needed > free:
        raise UserError(
            f"{count:,} decoded images of {file.size} x {file.size} pixels need {size_text(needed)} in "
            f"{folder} and {size_text(free)} are free there; use a smaller --image-size, or another folder "
            f"with --cache"
        )


def _watch(file: PixelFile, keys: Sequence[bytes], progress: Progress | None) -> Callable[[], None]:
    """Tells, while another process decodes, how many of our images are there already."""
    seen = 0

    def waiting() -> None:
        nonlocal seen
        changed = file.index.stat().st_mtime_ns if file.index.exists() else 0
        if progress and changed != seen:
            progress(int((_look_up(file, keys)[1] >= 0).sum()), len(keys))
            seen = changed

    return waiting


def _keys(files: FilePixels) -> list[bytes]:
    """16 bytes for each image, other ones where its file, that file's content or its box is another."""
    resolved = cache(os.path.realpath)  # of a folder: once, not for each file in it
    keys = []
    for path, box in zip(files.paths, files.boxes or repeat(None)):
        folder, name = os.path.split(path)
        try:
            stat = os.stat(path)
            content = stat.st_size, stat.st_mtime_ns
        except OSError:  # decoding it will say why
            content = -1, -1
        digest = hashlib.blake2b(struct.pack("<qq", *content), digest_size=KEY_BYTES)
        digest.update(struct.pack("<4d", *(box or _NO_BOX)))
        digest.update(os.fsencode(os.path.join(resolved(folder), name)))
        keys.append(digest.digest())
    return keys
