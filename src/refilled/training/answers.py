"""What a frozen teacher says of the batches, as cheaply as can be.

Where images are seen in a finite number of views (the 162 crops and flips of a padded 32-pixel image, or a
few fixed ones), the teacher can be asked about each once, and looked up from then on. Else it is asked
every time, with its batch norms folded away.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from refilled.data import Batch, Batches
from refilled.data.memory import available_bytes
from refilled.models import Network
from refilled.models.folded import Folded
from refilled.models.wanted import EMBEDDINGS, Wanted

_LARGEST_SHARE = 0.5  # of the free memory
_IMAGES_AT_ONCE = {"cuda": 4096, "cpu": 256}
_COMPILING_PAYS_FROM = 4_000_000
"""Images about which a network is asked from which compiling it, some 20 seconds, is given back."""
Progress = Callable[[int, int], None]


class Teachers:
    """Finds the cheapest way to ask, and remembers it for those who ask the same.

    Args:
        trainings: how many share it at the same time.
        autocast_dtype: of the training, or None.
        compile: compile those that are asked in every step, where that works.
        same_images: whether all of them see the same; what is looked up then pays for itself the sooner.
    """

    def __init__(
        self,
        trainings: int = 1,
        autocast_dtype: torch.dtype | None = None,
        compile: bool = False,
        same_images: bool = True,
    ):
        self.trainings, self.autocast_dtype, self.compile = trainings, autocast_dtype, compile
        self.same_images = same_images
        self._folded: list[Folded] = []
        self._tables: list[tuple[Folded, Batches, Tensor]] = []

    def answers(
        self,
        network: Network,
        batches: Batches,
        epochs: int,
        progress: Progress | None = None,
        wanted: Wanted = EMBEDDINGS,
        shared: bool = True,
    ) -> Callable[[Batch], Tensor]:
        """From a batch of ``batches`` to the network's answers [B + U, width].

        Args:
            network: frozen, in evaluation mode.
            batches: the images it will be asked about.
            epochs: how many epochs of them, in one training.
            progress: called with (done, total) while every view is asked about.
            wanted: which answers.
            shared: whether others ask this network too; else nothing of it is remembered.
        """
        folded = self._fold(network, wanted) if shared else Folded(network, self.autocast_dtype, wanted)
        table = self._known(folded, batches)
        if table is None and batches.views is not None:
            are_others = batches.fixed_views or not shared or not self.same_images  # fixed views: by the seed
            sharing = 1 if are_others else self.trainings
            pays = batches.views * batches.source.shape[0] <= epochs * sharing * batches.asked
            if pays and _fits(wanted.width(network), batches, self.autocast_dtype):
                if self.compile and batches.views * batches.source.shape[0] >= _COMPILING_PAYS_FROM:
                    rows = next(_in_equal_parts(batches))
                    raw, rows = batches.source.take(rows), rows.to(batches.device)
                    folded.compile_for(batches.shown(raw, rows, torch.zeros_like(rows)))
                table = every_view(folded, batches, progress)
                if shared:
                    self._remember(folded, batches, table)
        if table is not None:
            return lambda batch: table[batch.rows, batch.views]
        if self.compile and not folded.compiled:
            plan = batches.plan(0)
            raw = batches.source.take(plan.rows[0])
            folded.compile_for(batches.shown(raw, plan.rows[0], plan.views[0]))
        return lambda batch: folded.answer(batch.images)

    def _fold(self, network: Network, wanted: Wanted) -> Folded:
        for known in self._folded:
            if known.source[0] is network and known.wanted == wanted:
                return known
        folded = Folded(network, self.autocast_dtype, wanted)
        self._folded.append(folded)
        return folded

    def _remember(self, folded: Folded, batches: Batches, table: Tensor) -> None:
        """For those that ask the same. Of as many sets of pictures as there are trainings at once, those that
        were asked about last: the others are of seeds that are done, and with a table go its images."""
        self._tables.append((folded, batches, table))
        kept: list[Batches] = []
        for _, about, _ in reversed(self._tables):
            if len(kept) < self.trainings and not any(map(about.shows_the_same, kept)):
                kept.append(about)
        self._tables = [known for known in self._tables if any(map(known[1].shows_the_same, kept))]

    def _known(self, folded: Folded, batches: Batches) -> Tensor | None:
        for place, (asked, about, table) in enumerate(self._tables):
            if asked is folded and about.shows_the_same(batches):
                self._tables.append(self._tables.pop(place))  # the last that was asked about
                return table
        return None


def every_view(folded: Folded, batches: Batches, progress: Progress | None = None) -> Tensor:
    """Answers [N, views, width] for every view of every image."""
    count, views = batches.source.shape[0], batches.views or 0
    table: Tensor | None = None
    for rows in _in_equal_parts(batches):
        raw, rows = batches.source.take(rows), rows.to(batches.device)
        for view in range(views):
            answers = folded.answer(batches.shown(raw, rows, torch.full_like(rows, view)))
            if table is None:
                table = answers.new_empty(count, views, answers.shape[1])
            table[rows, view] = answers
        if progress:
            progress(int(rows[-1]) + 1, count)
    assert table is not None
    if table.is_cuda:
        torch.cuda.synchronize()  # others will read it on streams of their own
    return table


def _in_equal_parts(batches: Batches) -> Iterator[Tensor]:
    """Rows of all images, so many at once. The last part begins before the end of the one before it, if need
    be: what is compiled is compiled for one size."""
    count = batches.source.shape[0]
    size = min(count, _IMAGES_AT_ONCE.get(batches.device.type, 256))
    for first in range(0, count, size):
        yield min(first, count - size) + torch.arange(size)


def _fits(width: int, batches: Batches, dtype: torch.dtype | None) -> bool:
    if batches.device.type == "cuda":
        unused = torch.cuda.memory_reserved(batches.device) - torch.cuda.memory_allocated(batches.device)
        free: int | None = torch.cuda.mem_get_info(batches.device)[0] + unused
    else:
        free = available_bytes()
    size = (dtype or torch.float32).itemsize
    needed = size * batches.source.shape[0] * (batches.views or 0) * width
    return free is None or needed <= _LARGEST_SHARE * free
