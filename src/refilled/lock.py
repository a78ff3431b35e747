"""A lock on a file: one process writes, the others wait, or do something else."""

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
def locked(path: Path, waiting: Callable[[], None], option: str) -> Iterator[None]:
    """Holds the lock within a ``with``; the system takes it back from a process that dies.

    Args:
        path: the lock file, made where it is missing and left there: whoever removed it could remove it
            from under a process that has just locked it.
        waiting: called again and again while another one holds the lock.
        option: of the command, that chooses another folder, for whom no file there can be locked.
    """
    with _opened(path) as handle:
        while not _try_to_lock(handle, path, option):
            waiting()
            time.sleep(_SECONDS_BETWEEN_TRIES)
        yield


@contextlib.contextmanager
def locked_if_free(path: Path, option: str) -> Iterator[bool]:
    """The same without waiting: says whether the lock is ours, or another one holds it."""
    with _opened(path) as handle:
        yield _try_to_lock(handle, path, option)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        yield handle
    finally:
        os.close(handle)


if sys.platform == "win32":
    import msvcrt

    def _try_to_lock(handle: int, path: Path, option: str) -> bool:
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_to_lock(handle: int, path: Path, option: str) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR):
                return False
            raise UserError(
                f"cannot lock {path}: {str(error.strerror).lower()}; "
                f"choose a folder on another disk with {option}"
            ) from error
        return True
