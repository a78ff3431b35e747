"""A loss compiled in two parts: the student's network, and what a stage makes of its outputs.

The network is what takes long to compile, and it is the same in every stage, for every method and seed.
Compiled apart from the loss around it, its code is made once in a process and used by all of them: once for
those that look at embeddings alone, and once for those that look at maps. One for all would give the first
ones maps that they do not ask for, and want gradients of them: zeros, which are written, read and added.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from refilled.data import Batch
from refilled.data.augment import Show, show
from refilled.models import Network

_PARTS = {
    "feature_maps": "features",
    "responses": "responses_and_embedding",
    "embed_prepared": "embed",
    "maps_and_embedding": "features_and_embedding",
}
"""What a network computes of prepared images, where its layers are, and who prepares them and calls it."""
_MOST_COMPILED = 256  # versions of one function in a process; beyond it PyTorch would stop compiling


class CompiledLoss:
    """Gives what the loss gives; the first call with a new shape or a new kind of network compiles.

    Args:
        loss: of a stage.
        student: whose layers the loss runs through; outside of a call it is as it was.
        around: compile what is around the network, too, for this loss alone.
    """

    def __init__(self, loss: Callable[[Batch], dict[str, Tensor]], student: Network, around: bool = True):
        import torch._dynamo.config as limits
        import torch._functorch.config as memory

        limits.recompile_limit = max(limits.recompile_limit, _MOST_COMPILED)
        # What the forward pass saves may be a view of something else it saves: the backward pass would write
        # over the one while it reads the other (seen with a Gram matrix and its diagonal, PyTorch 2.13).
        memory.donated_buffer = False
        self.student, self._around = student, torch.compile(loss) if around else loss

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Named losses of a batch."""
        with _parts_compiled(self.student):
            return self._around(batch)


@contextmanager
def _parts_compiled(student: Network) -> Iterator[None]:
    own = {part for part in _PARTS if getattr(type(student), part) is not getattr(Network, part)}
    if "feature_maps" in own:  # then what is made of them, too
        own |= {"embed_prepared", "maps_and_embedding"}
    own |= {_PARTS[part] for part in own}
    for part in own:
        # One and the same function for all students: a new one would make the loss around it compile again.
        student.__dict__[part] = MethodType(_apart(part), student)
    try:
        yield
    finally:
        for part in own:
            del student.__dict__[part]


@contextmanager
def _as_it_was(student: Network) -> Iterator[None]:
    """So that a part that calls another is compiled with it."""
    every = (*_PARTS, *_PARTS.values())
    ours = {part: student.__dict__.pop(part) for part in every if part in student.__dict__}
    try:
        yield
    finally:
        student.__dict__.update(ours)


@cache
def _apart(part: str) -> Callable[..., Any]:
    """A method that calls its compiled self, and that compiling stops at."""

    @torch.compiler.disable(recursive=False)
    def apart(student: Network, images: Tensor) -> Any:
        with _as_it_was(student):
            return _compiled(getattr(type(student), part))(student, images)

    return apart


@cache
def _compiled(method: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(method)


@cache
def compiled_show() -> Show:
    """:func:`refilled.data.augment.show` as one kernel or two instead of twenty small ones."""
    return torch.compile(show, dynamic=False)
