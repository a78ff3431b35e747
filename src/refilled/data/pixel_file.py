"""A file of decoded images of one size, one after the other, and an index of what is in it.

``3x224x224.pixels`` is a line of JSON that says what it is, filled up to 4096 bytes, and then the images,
uint8 [3, 224, 224] each. ``3x224x224.index`` (NumPy's ``.npz``) repeats that line and holds the key of the
image in each place, 16 bytes, zeros where there is none.

Images are only ever added: what is in a place stays there, so one may read while another adds. The index is
replaced as a whole, after the pixels that it tells of are on the disk. A file that does not belong to its
index, or is shorter than the index says, is not used; a new one takes its place, and whoever has the old one
open goes on with that.
"""

import json
import os
import secrets
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import PIL

from refilled.errors import UserError
from refilled.files import write_atomically

FORMAT = 1  # count it up whenever decode() gives other pixels
KEY_BYTES = 16
_HEADER_BYTES = 4096


class PixelFile:
    """Images of one size in a folder. Only who holds the lock may call what changes it.

    Args:
        folder: where it is, or will be.
        size: side of the images.
        channels: 3 or 1.
    """

    def __init__(self, folder: Path, size: int, channels: int):
        name = f"{channels}x{size}x{size}"
        self.path, self.index, self.lock = (folder / f"{name}.{kind}" for kind in ("pixels", "index", "lock"))
        self.size, self.channels = size, channels
        self.image_bytes = channels * size * size

    def offset(self, place: int) -> int:
        """Where in the file the image in a place begins."""
        return _HEADER_BYTES + place * self.image_bytes

    def open(self) -> "OpenPixels | None":
        """What is there now, or None where nothing is that can be trusted."""
        try:
            opened = OpenPixels(self)
        except OSError:
            return None
        try:
            with np.load(self.index, allow_pickle=False) as index:
                header, opened.keys = bytes(index["header"]), index["keys"]
            token = json.loads(header)["token"]
            whole = os.fstat(opened.handle).st_size >= self.offset(len(opened.keys))
            ours = header == self._header(token) == os.read(opened.handle, _HEADER_BYTES)
            good = opened.keys.dtype == np.uint8 and opened.keys.shape[1:] == (KEY_BYTES,)
        except Exception:  # damaged files make NumPy raise nearly anything
            return None
        return opened if whole and ours and good else None

    def start(self) -> None:
        """Begin a new file without images, in place of the one there may be."""
        header = self._header(secrets.token_hex(8))

        def write(temporary: Path) -> None:
            temporary.write_bytes(header)

        write_atomically(self.path, write)
        self._write_index(header, np.empty((0, KEY_BYTES), dtype=np.uint8))

    def extend(self, count: int) -> int:
        """Make room for that many images at the end; returns the first one's place.

        The end is that of the file, not that of the index: a process that was killed may have left workers
        that still write what they have begun.
        """
        first = -(-(os.path.getsize(self.path) - _HEADER_BYTES) // self.image_bytes)
        os.truncate(self.path, self.offset(first + count))
        return first

    def save(self, keys: np.ndarray) -> None:
        """Write the index anew; the pixels of all images in it must be written.

        Args:
            keys: uint8 [places, 16].
        """
        with open(self.path, "r+b") as file:
            os.fsync(file.fileno())
            header = file.read(_HEADER_BYTES)
        self._write_index(header, keys)

    def cut(self, places: int) -> None:
        """Give back the room after that many places."""
        os.truncate(self.path, self.offset(places))

    def _header(self, token: str) -> bytes:
        about = {
            "what": "decoded images of refilled, which it can make again",
            "format": FORMAT,
            "pillow": PIL.__version__,
            "shape": [self.channels, self.size, self.size],
            "token": token,
        }
        return (json.dumps(about) + "\n").encode().ljust(_HEADER_BYTES)

    def _write_index(self, header: bytes, keys: np.ndarray) -> None:
        def write(temporary: Path) -> None:
            with open(temporary, "wb") as file:
                np.savez(file, header=np.frombuffer(header, dtype=np.uint8), keys=keys)

        write_atomically(self.index, write)


class OpenPixels:
    """A file of images that is open for reading, by any number of threads."""

    keys: np.ndarray
    """uint8 [places, 16]"""

    def __init__(self, file: PixelFile):
        self.file = file
        self.handle = os.open(file.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self._seeking = threading.Lock()
        weakref.finalize(self, os.close, self.handle)

    def find(self, keys: Sequence[bytes]) -> np.ndarray:
        """The places int64 [N] of N images, -1 where there is none."""
        places = {key.tobytes(): place for place, key in enumerate(self.keys)}
        return np.array([places.get(key, -1) for key in keys], dtype=np.int64)

    def read(self, places: Sequence[int], out: np.ndarray) -> None:
        """Put the images in those places into ``out``, uint8 [B, channels, side, side].

        The file is read, not mapped into memory. Mapped pages count as the process's memory, and as many
        neighbours as the system likes come with each; an error of the disk ends the process.
        """
        for place, image in zip(places, out.reshape(len(out), self.file.image_bytes)):
            done, offset = 0, self.file.offset(place)
            while done < len(image):
                count = self._read(image[done:], offset + done)
                if not count:
                    raise UserError(f"{self.file.path} was cut while it was used; start again")
                done += count

    def _read(self, out: np.ndarray, offset: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self.handle, [out], offset)  # type: ignore[list-item]
        with self._seeking:  # Windows
            os.lseek(self.handle, offset, os.SEEK_SET)
            data = os.read(self.handle, len(out))
        out[: len(data)] = np.frombuffer(data, dtype=np.uint8)
        return len(data)
