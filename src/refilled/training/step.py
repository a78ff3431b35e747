"""One training step, plainly: forward, named losses, backward, update."""

from collections.abc import Callable

import torch
from torch import Tensor

from refilled.data import Batch
from refilled.methods import Stage


class PlainStep:
    """Runs a stage's loss and updates its parameters with SGD.

    Args:
        stage: what is trained, by which loss.
        momentum: Nesterov momentum.
        weight_decay: on every trained parameter.
        autocast_dtype: type of the autocast, or None.
    """

    def __init__(
        self, stage: Stage, momentum: float, weight_decay: float, autocast_dtype: torch.dtype | None = None
    ):
        self.stage = stage
        self.loss: Callable[[Batch], dict[str, Tensor]] = stage.loss
        self.autocast_dtype = autocast_dtype
        self.terms: tuple[str, ...] = ()
        self.optimizer = torch.optim.SGD(
            stage.parameters,
            lr=0.0,
            momentum=momentum,
            weight_decay=weight_decay,
            nesterov=momentum > 0,
            fused=stage.parameters[0].device.type in ("cuda", "cpu"),
        )

    def __call__(self, batch: Batch, lr: float | Tensor) -> Tensor:
        """Update once; returns the loss terms [terms], named by ``self.terms``, still on the device."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        with torch.autocast(
            batch.labels.device.type, dtype=self.autocast_dtype, enabled=self.autocast_dtype is not None
        ):
            losses = self.loss(batch)
        self.terms = tuple(losses)
        values = torch.stack([value.float() for value in losses.values()])
        self.optimizer.zero_grad(set_to_none=True)
        values.sum().backward()
        self.optimizer.step()
        return values.detach()
