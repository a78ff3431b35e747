"""A lock on a file: one process writes, the others wait."""

import contextlib
import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from refilled.errors import UserError

_SECONDS_BETWEEN_TRIES = 0.2


@contextlib.contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Holds the lock within a ``with``; the system takes it back from a process that dies.

    Args:
        path: the lock file, made where it is missing and left there: whoever removed it could remove it
            from under a process that has just locked it.
        waiting: called again and again while another one holds the lock.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        while not _try_to_lock(handle, path):
            waiting()
            time.sleep(_SECONDS_BETWEEN_TRIES)
        yield
    finally:
        os.close(handle)


if sys.platform == "win32":
    import msvcrt

    def _try_to_lock(handle: int, path: Path) -> bool:
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_to_lock(handle: int, path: Path) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR):
                return False
            raise UserError(
                f"cannot lock {path}: {str(error.strerror).lower()}; "
                f"choose a folder on another disk with --cache"
            ) from error
        return True
