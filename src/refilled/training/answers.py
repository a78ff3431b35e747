"""What a frozen teacher says of the batches, as cheaply as can be.

Where images are seen in a finite number of views (the 162 crops and flips of a padded 32-pixel image, or a
few fixed ones), the teacher can be asked about each once, and looked up from then on. Else it is asked
every time, with its batch norms folded away.
"""

import weakref
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
    """

    def __init__(self, trainings: int = 1, autocast_dtype: torch.dtype | None = None):
        self.trainings, self.autocast_dtype = trainings, autocast_dtype
        self._folded: weakref.WeakKeyDictionary[Network, FoldedEmbedding] = weakref.WeakKeyDictionary()
        self._tables: list[tuple[Network, Batches, Tensor]] = []

    def answers(
        self, network: Network, batches: Batches, epochs: int, progress: Progress | None = None
    ) -> Callable[[Batch], Tensor]:
        """From a batch of ``batches`` to the network's embeddings [B, dim].

        Args:
            network: frozen, in evaluation mode.
            batches: the images it will be asked about.
            epochs: how many epochs of them, in one training.
            progress: called with (done, total) while every view is asked about.
        """
        if network not in self._folded:
            self._folded[network] = FoldedEmbedding(network, self.autocast_dtype)
        folded = self._folded[network]
        views = batches.views
        if views is None or views > epochs * self.trainings or not _fits(network, batches, views):
            return lambda batch: folded.embed(batch.images)
        table = self._table(network, batches, folded, views, progress)
        return lambda batch: table[batch.rows, batch.views]

    def _table(
        self,
        network: Network,
        batches: Batches,
        folded: FoldedEmbedding,
        views: int,
        progress: Progress | None,
    ) -> Tensor:
        for asked, about, table in self._tables:
            if asked is network and about.shows_the_same(batches):
                return table
        table = every_view(folded, batches, views, progress)
        self._tables.append((network, batches, table))
        return table


def every_view(
    folded: FoldedEmbedding, batches: Batches, views: int, progress: Progress | None = None
) -> Tensor:
    """Embeddings [N, views, dim] of every view of every image."""
    count, dim = len(batches.labels), folded.source[0].dim
    table: Tensor | None = None
    size = _IMAGES_AT_ONCE.get(batches.device.type, 256)
    for rows in torch.arange(count).split(size):
        raw, rows = batches.source.take(rows), rows.to(batches.device)
        for view in range(views):
            z = folded.embed(batches.assemble(raw, rows, torch.full_like(rows, view)).images)
            if table is None:
                table = z.new_empty(count, views, dim)
            table[rows, view] = z
        if progress:
            progress(int(rows[-1]) + 1, count)
    assert table is not None
    return table


def _fits(network: Network, batches: Batches, views: int) -> bool:
    if batches.device.type == "cuda":
        free: int | None = torch.cuda.mem_get_info(batches.device)[0]
    else:
        free = available_bytes()
    needed = 4 * len(batches.labels) * views * network.dim
    return free is None or needed <= _LARGEST_SHARE * free
