"""A process that decodes images, from the side of the one who started it."""

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from refilled.data import decode, decode_worker
from refilled.data.decode_worker import Job
from refilled.errors import UserError


class NoProcess(Exception):
    """A process could not be started."""


def cannot_write(target: Path, reason: str) -> UserError:
    """An error for a file of pixels on a disk that is full, say."""
    return UserError(f"cannot write to {target}: {reason.lower()}; choose another folder with --cache")


class DecodeProcess:
    """Runs ``decode_worker.py``. A file that makes it crash is a bad image, and another process goes on.

    It is no process of :mod:`multiprocessing`: such a one imports the script of the person who called us
    once more, and with it torch.

    Args:
        target: the file of pixels, which exists.
        size: side of the squares.
        channels: 3 or 1.

    Raises:
        NoProcess: where none can be started, at once or from :meth:`check_ready`.
    """

    def __init__(self, target: Path, size: int, channels: int):
        self._target = target
        self._setup = {
            "path": [os.path.abspath(place) for place in sys.path],  # "" is the current folder
            "decode": decode.__file__,
            "target": str(target.absolute()),
            "size": size,
            "channels": channels,
        }
        self._changing = threading.Lock()
        self._stopped = False
        self._process = self._start()

    def check_ready(self) -> None:
        """Wait until it can decode."""
        if self._receive() != "ready":
            raise NoProcess

    def decode(self, jobs: Sequence[Job]) -> list[str | None]:
        """Decode some files to their places; for each the reason why it is a bad one, or None."""
        self._send(jobs)
        answer = self._receive()
        if isinstance(answer, list):
            return answer
        if answer is not None:
            raise cannot_write(self._target, answer["failed"])
        ended = self._process.wait()
        self._restart()
        if len(jobs) > 1:  # which of them was it?
            return [reason for job in jobs for reason in self.decode([job])]
        how = f"signal {-ended}" if ended < 0 else f"exit code {ended}"
        return [f"the process that decodes it ends ({how})"]

    def stop(self) -> None:
        """End it now, whatever it does."""
        with self._changing:
            self._stopped = True
            self._end()

    def _start(self) -> subprocess.Popen[str]:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", decode_worker.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                encoding="ascii",
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
            )
        except (OSError, TypeError) as error:  # a program that Python is a part of has no sys.executable
            raise NoProcess from error
        self._send(self._setup)
        return self._process

    def _restart(self) -> None:
        with self._changing:
            if self._stopped:
                raise NoProcess
            self._end()
            self._start()
        if self._receive() != "ready":
            raise UserError("a process that decodes images ended, and cannot be started again")

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was left to write has no reader any more
                    pipe.close()

    def _send(self, message: Any) -> None:
        """One line to the process; where it is dead, nothing will be received."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def _receive(self) -> Any:
        """What it says, or None where it is dead."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line.endswith("\n") else None
