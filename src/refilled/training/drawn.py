"""What a captured step finds on the device: an epoch's draws and rates, and a place for its losses."""

import torch
from torch import Tensor

from refilled.data import Plan
from refilled.training.epochs import Schedule


class Drawn:
    """An epoch in places of its own, in which a step finds its part by a counter on the device.

    Args:
        plan: the draws of any epoch, for the shapes.
        device: where all of it is.
    """

    losses: Tensor
    """Loss terms [steps, terms] of an epoch, after :meth:`make_room`."""

    def __init__(self, plan: Plan, device: torch.device):
        self._rows, self._views = plan.rows.clone(), plan.views.clone()
        self._rates, self._progress = torch.zeros(2, len(plan), device=device).unbind(0)
        self._number = torch.zeros(1, dtype=torch.int64, device=device)

    def make_room(self, terms: int) -> None:
        """For so many losses of a step."""
        self.losses = torch.zeros(len(self._rates), terms, device=self._rates.device)

    def put(self, plan: Plan, schedule: Schedule) -> None:
        """An epoch begins."""
        self._rows.copy_(plan.rows)
        self._views.copy_(plan.views)
        self._rates.copy_(torch.tensor(schedule.rates))
        self._progress.copy_(torch.tensor(schedule.progress))
        self._number.zero_()

    def now(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Rows and views [B + U] of the step that is next, its learning rate [] and the progress []."""
        every = (self._rows, self._views, self._rates, self._progress)
        rows, views, rate, progress = (one[self._number][0] for one in every)
        return rows, views, rate, progress

    def write(self, values: Tensor) -> None:
        """A step is done, with those loss terms [terms]."""
        self.losses.index_copy_(0, self._number, values[None])
        self._number += 1
