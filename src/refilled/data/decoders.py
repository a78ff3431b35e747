"""Many image files decoded at the same time, each straight to its place in a file."""

from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from threading import Event

from refilled.data import decode as decoding
from refilled.data.decode_process import DecodeProcess, NoProcess, cannot_write
from refilled.data.decode_worker import Job, decode_to_file
from refilled.data.pixels import worker_count

_JOBS_PER_TASK = 32
_JOBS_WORTH_A_PROCESS = 64  # fewer are decoded before a process would have started

Reasons = list[str | None]
"""For each image why it is a bad one, or None."""


def decode_files(
    target: Path, jobs: Sequence[Job], size: int, channels: int
) -> Generator[tuple[range, Reasons], None, None]:
    """Decode every job; yields the numbers of some jobs as soon as those are done, in any order.

    Each processor core gets a process, since threads wait for each other in Python's part of the work: with
    16 cores processes decode twice as many photographs to 224 pixels, and three times as many to 64. A few
    files, and where no process can be started all files, are decoded by threads. Closing the iterator ends
    the work at once.

    Args:
        target: the file of pixels, which exists.
        jobs: what is decoded.
        size: side of the squares.
        channels: 3 or 1.
    """
    processes = _start(min(worker_count(), len(jobs) // _JOBS_WORTH_A_PROCESS), target, size, channels)
    idle: SimpleQueue[DecodeProcess] = SimpleQueue()
    stopped = Event()
    for process in processes:
        idle.put(process)

    def in_process(some: Sequence[Job]) -> Reasons:
        process = idle.get()
        try:
            return process.decode(some)
        finally:
            idle.put(process)

    def in_thread(some: Sequence[Job]) -> Reasons:
        try:
            with open(target, "r+b", buffering=0) as file:
                unless_stopped = (job for job in some if not stopped.is_set())
                return decode_to_file(decoding, file, unless_stopped, size, channels)
        except OSError as error:
            raise cannot_write(target, error.strerror or str(error)) from error

    decoding.readable_formats()  # load the plugins before the threads race for them
    tasks = [
        range(start, min(start + _JOBS_PER_TASK, len(jobs))) for start in range(0, len(jobs), _JOBS_PER_TASK)
    ]
    work = in_process if processes else in_thread
    with ThreadPoolExecutor(len(processes) or worker_count()) as pool:
        futures = {pool.submit(work, jobs[task.start : task.stop]): task for task in tasks}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:  # Ctrl-C must not wait for the files that are left, but nothing may be written after it
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.stop()


def _start(count: int, target: Path, size: int, channels: int) -> list[DecodeProcess]:
    """That many processes, or none."""
    processes: list[DecodeProcess] = []
    try:
        for _ in range(count):
            processes.append(DecodeProcess(target, size, channels))
        for process in processes:
            process.check_ready()
    except BaseException as error:
        for process in processes:
            process.stop()
        if not isinstance(error, NoProcess):
            raise
        return []
    return processes
