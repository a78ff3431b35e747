"""Will it fit? Asked before the pixels are allocated, not after the machine has begun to swap."""

import os
from pathlib import Path

from refilled.errors import UserError

GIB = 2**30


def available_bytes() -> int | None:
    """Memory that can still be used, as far as the system tells; None where it does not."""
    limits = [limit for limit in (_from_meminfo(), _from_control_group()) if limit is not None]
    if limits:
        return min(limits)
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def size_text(count: int) -> str:
    """A number of bytes in words: ``2.8 GiB``, or ``35 MiB``."""
    return f"{count / GIB:.1f} GiB" if count >= GIB / 10 else f"{count / 2**20:.0f} MiB"


def check_fits(count: int, channels: int, size: int, *, streamable: bool = False) -> None:
    """Refuses ``count`` images of uint8 [channels, size, size] that are larger than free memory.

    Args:
        count: how many.
        channels: of each image.
        size: side of each image.
        streamable: they are files, which need not be in memory all at once.
    """
    needed, available = count * channels * size * size, available_bytes()
    if available is not None and needed > available:
        raise UserError(
            f"{count:,} images of {size} x {size} pixels need {size_text(needed)} of memory and "
            f"{size_text(available)} are available; "
            f"use {'--pixels stream, ' * streamable}a smaller --image-size or fewer images"
        )


def _from_meminfo() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _from_control_group() -> int | None:
    """What a container may still use; the machine's own figure is larger."""
    try:
        group = Path("/sys/fs/cgroup")
        limit = (group / "memory.max").read_text(encoding="ascii").strip()
        used = int((group / "memory.current").read_text(encoding="ascii"))
        statistics = (group / "memory.stat").read_text(encoding="ascii").split()
        cached = int(statistics[statistics.index("inactive_file") + 1])  # given back when it is needed
        return None if limit == "max" else max(0, int(limit) - used + cached)
    except (OSError, ValueError):
        return None
