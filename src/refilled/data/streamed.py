"""Images that stay on disk: read in the background, a few batches ahead of the one that is used."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from refilled.data.cache import CachedImages

_BATCHES_AHEAD = 4
"""All that is held in memory, whatever the number of images; each is read by a thread of its own."""


class Streamed:
    """Images of a cache as a source of batches: the very bytes that images in memory would give.

    Args:
        images: which images.
        device: where batches are wanted.
    """

    def __init__(self, images: CachedImages, device: torch.device):
        self.images = images
        self.device = torch.empty(0, device=device).device  # with its number: "cuda" is not "cuda:0"
        self.shape = images.shape
        # Copies on a stream of their own need not wait for the kernels of the steps before.
        self._copying = torch.cuda.Stream(self.device) if device.type == "cuda" else None

    def take(self, rows: Tensor) -> Tensor:
        """Images uint8 [B, channels, side, side] on the device."""
        return self._to_device(self._read(self._buffer(len(rows)), rows.cpu()))

    def stream(self, parts: Tensor) -> Iterator[Tensor]:
        """The same for each row of ``parts`` [steps, B]."""
        waiting: deque[Future[Tensor]] = deque()
        with ThreadPoolExecutor(_BATCHES_AHEAD, thread_name_prefix="read-images") as pool:
            try:
                for rows in parts.cpu():
                    # Buffers come from the thread that uses the device, never from those that read: while
                    # a graph is captured, no other thread may call CUDA.
                    waiting.append(pool.submit(self._read, self._buffer(len(rows)), rows))
                    if len(waiting) > _BATCHES_AHEAD:
                        yield self._to_device(waiting.popleft().result())
                while waiting:
                    yield self._to_device(waiting.popleft().result())
            finally:
                for future in waiting:
                    future.cancel()

    def _buffer(self, count: int) -> Tensor:
        return torch.empty((count, *self.shape[1:]), dtype=torch.uint8, pin_memory=self._copying is not None)

    def _read(self, buffer: Tensor, rows: Tensor) -> Tensor:
        self.images.read(rows, buffer)
        return buffer

    def _to_device(self, buffer: Tensor) -> Tensor:
        """Pinned memory that is let go is not used again before its copy is done: PyTorch sees to that."""
        if self._copying is None:
            return buffer.to(self.device)
        with torch.cuda.stream(self._copying):
            images = buffer.to(self.device, non_blocking=True)
        current = torch.cuda.current_stream(self.device)
        current.wait_stream(self._copying)
        images.record_stream(current)
        return images
