"""What a frozen teacher says of the batches, as cheaply as can be.

Where images are seen in a finite number of views (the 162 crops and flips of a padded 32-pixel image, or a
few fixed ones), the teacher can be asked about each once, and looked up from then on. Else it is asked
every time, with its batch norms folded away.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from refilled.data import Batch, Batches
from refilled.data.memory import available_bytes
from refilled.models import Network
from refilled.models.folded import FoldedEmbedding

_LARGEST_SHARE = 0.5  # of the free memory
_IMAGES_AT_ONCE = {"cuda": 4096, "cpu": 256}
Progress = Callable[[int, int], None]


class Teachers:
    """Finds the cheapest way to ask, and remembers it for those who ask the same.

    Args:
        trainings: how many share it; what is looked up then pays for itself the sooner.
        autocast_dtype: of the training, or None.
        compile: compile those that are asked in every step, where that works.
    """

    def __init__(self, trainings: int = 1, autocast_dtype: torch.dtype | None = None, compile: bool = False):
        self.trainings, self.autocast_dtype, self.compile = trainings, autocast_dtype, compile
        self._folded: list[tuple[Network, FoldedEmbedding]] = []
        self._tables: list[tuple[Network, Batches, Tensor]] = []

    def answers(
        self, network: Network, batches: Batches, epochs: int, progress: Progress | None = None
    ) -> Callable[[Batch], Tensor]:
        """From a batch of ``batches`` to the network's embeddings [B + U, dim].

        Args:
            network: frozen, in evaluation mode.
            batches: the images it will be asked about.
            epochs: how many epochs of them, in one training.
            progress: called with (done, total) while every view is asked about.
        """
        folded, table = self._fold(network), self._known(network, batches)
        if table is None and batches.views is not None:
            sharing = 1 if batches.fixed_views else self.trainings  # fixed views are each seed's own
            pays = batches.views * batches.source.shape[0] <= epochs * sharing * batches.asked
            if pays and _fits(network, batches, self.autocast_dtype):
                table = every_view(folded, batches, progress)
                self._tables.append((network, batches, table))
        if table is not None:
            return lambda batch: table[batch.rows, batch.views]
        if self.compile and not folded.compiled:
            plan = batches.plan(0)
            raw = batches.source.take(plan.rows[0])
            folded.compile_for(batches.shown(raw, plan.rows[0], plan.views[0]))
        return lambda batch: folded.embed(batch.images)

    def _fold(self, network: Network) -> FoldedEmbedding:
        for known, folded in self._folded:
            if known is network:
                return folded
        folded = FoldedEmbedding(network, self.autocast_dtype)
        self._folded.append((network, folded))
        return folded

    def _known(self, network: Network, batches: Batches) -> Tensor | None:
        for asked, about, table in self._tables:
            if asked is network and about.shows_the_same(batches):
                return table
        return None


def every_view(folded: FoldedEmbedding, batches: Batches, progress: Progress | None = None) -> Tensor:
    """Embeddings [N, views, dim] of every view of every image."""
    count, views, dim = batches.source.shape[0], batches.views or 0, folded.source[0].dim
    table: Tensor | None = None
    size = _IMAGES_AT_ONCE.get(batches.device.type, 256)
    for rows in torch.arange(count).split(size):
        raw, rows = batches.source.take(rows), rows.to(batches.device)
        for view in range(views):
            z = folded.embed(batches.shown(raw, rows, torch.full_like(rows, view)))
            if table is None:
                table = z.new_empty(count, views, dim)
            table[rows, view] = z
        if progress:
            progress(int(rows[-1]) + 1, count)
    assert table is not None
    if table.is_cuda:
        torch.cuda.synchronize()  # others will read it on streams of their own
    return table


def _fits(network: Network, batches: Batches, dtype: torch.dtype | None) -> bool:
    if batches.device.type == "cuda":
        unused = torch.cuda.memory_reserved(batches.device) - torch.cuda.memory_allocated(batches.device)
        free: int | None = torch.cuda.mem_get_info(batches.device)[0] + unused
    else:
        free = available_bytes()
    size = (dtype or torch.float32).itemsize
    needed = size * batches.source.shape[0] * (batches.views or 0) * network.dim
    return free is None or needed <= _LARGEST_SHARE * free
