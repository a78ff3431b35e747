"""Decodes image files in a process of its own.

``decode_process.py`` starts this file as a script, and it finds ``decode.py`` by its path. Importing either
by the package's name would import torch too, which takes seconds and hundreds of megabytes; a worker has 40.

A line of JSON comes in for each task, a list of [file, box, offset], and one goes out: for each image null,
or the reason why it is a bad one. The pixels go straight to their place in the file that all workers share.
"""

import importlib.util
import io
import json
import signal
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

Job = tuple[str, Sequence[float] | None, int]
"""An image file, what is shown of it, and where its pixels belong: their offset in bytes."""


def decode_to_file(
    decoding: ModuleType, target: io.RawIOBase, jobs: Iterable[Job], size: int, channels: int
) -> list[str | None]:
    """Write each image's pixels to its place; returns why an image is bad, or None, for each.

    Args:
        decoding: the module ``decode.py``.
        target: the file of pixels, of this caller alone and not buffered.
        jobs: what is decoded.
        size: side of the squares.
        channels: 3 or 1.
    """
    reasons: list[str | None] = []
    for path, box, offset in jobs:
        try:
            pixels = decoding.decode(path, size, channels, box)
        except decoding.BadImage as error:
            reasons.append(str(error))
        else:
            target.seek(offset)
            data = memoryview(pixels.tobytes())
            while data:
                data = data[target.write(data) or 0 :]
            reasons.append(None)
    return reasons


def _load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("decode", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _answer(message: Any) -> None:
    print(json.dumps(message), flush=True)


def main() -> None:
    """Answer tasks until there are no more; the first line says how the process is set up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends its workers
    setup = json.loads(sys.stdin.readline())
    sys.path[:] = setup["path"]
    decoding = _load(setup["decode"])
    decoding.readable_formats()
    with open(setup["target"], "r+b", buffering=0) as target:
        _answer("ready")
        for line in sys.stdin:
            try:
                _answer(decode_to_file(decoding, target, json.loads(line), setup["size"], setup["channels"]))
            except OSError as error:  # the file of pixels cannot be written to
                _answer({"failed": error.strerror or str(error)})


if __name__ == "__main__":
    main()
