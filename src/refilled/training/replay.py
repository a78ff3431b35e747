"""A step that is the same every time but for the values of its inputs: one CUDA graph, replayed.

Few-shot baselines that learn the seen classes take tens of thousands of small steps. Launched from Python,
their kernels wait for each other's launch; recorded once and replayed, they follow each other without a gap.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache

import torch
from torch import Tensor, nn

_WARM_UP_STEPS = 3  # libraries choose their kernels and allocate their workspaces here, not in the graph
_last_random: torch.cuda.Event | None = None
"""End of the last replay that drew random numbers. All graphs read the one generator's state from one place
on the device, so that those that draw must not overlap."""

Step = Callable[..., Tensor | None]
"""From tensors to what is to be known of the step, if anything."""


class Replayed:
    """A training step: on a CUDA device captured in a graph when it is first called, elsewhere simply called.

    The step is done once for each call; those that are tried before the capture leave weights, buffers,
    the optimiser's state and the random numbers as they were. What has other values in every step comes as
    an input, learning rates too: everything else is fixed when the step is captured. A step that a graph
    cannot hold, because it waits for the device, is called plainly, and a warning says so.

    Args:
        step: gradients from nothing, then an update. Its inputs have the same shapes, types and device every
            time. What it returns has no gradient, and on a CUDA device the next call overwrites it.
        modules: all that it changes.
        optimiser: that it updates them by; fit to be captured, with a state that starts from zero.
    """

    def __init__(self, step: Step, modules: Sequence[nn.Module], optimiser: torch.optim.Optimizer):
        self.step, self.modules, self.optimiser = step, modules, optimiser
        self._graph: torch.cuda.CUDAGraph | None = None
        self._is_new = True

    def __call__(self, *inputs: Tensor) -> Tensor | None:
        """Do the step."""
        device = inputs[0].device
        if device.type != "cuda":
            return self.step(*inputs)
        with torch.cuda.device(device):
            if self._is_new:
                self._is_new = False
                self._capture([given.clone() for given in inputs])
            if self._graph is None:
                return self.step(*inputs)
            for own, given in zip(self._inputs, inputs, strict=True):
                own.copy_(given)
            replay(self._graph, self._random)
            return self._output

    @property
    def captured(self) -> bool:
        """Whether there is a graph: False before the first call, and where there can be none."""
        return self._graph is not None

    def _capture(self, inputs: list[Tensor]) -> None:
        self._inputs, graph = inputs, torch.cuda.CUDAGraph()
        before, random = _Before(self.modules, self.optimiser), torch.cuda.get_rng_state()
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".*capturable=True")  # it is not captured yet
                warnings.filterwarnings("ignore", "Synchronization debug mode")
                self._random = warm_up(lambda: self.step(*inputs), watched=True)
            self.optimiser.zero_grad(set_to_none=True)
            with (
                torch.cuda.stream(torch.cuda.current_stream()),  # put back even where a capture breaks off
                torch.cuda.graph(graph, stream=stream_to_capture_on()),
            ):
                self._output = self.step(*inputs)
            self._graph = graph
        except RuntimeError as problem:
            first = str(problem).partition("\n")[0][:120]
            warnings.warn(
                f"a step cannot be captured in a CUDA graph ({first}); its kernels are launched one by one, "
                f"which is slower",
                stacklevel=3,
            )
        finally:
            torch.cuda.synchronize()
            before.restore()
            torch.cuda.set_rng_state(random)


class _Before:
    """All that a step changes, to be put back after steps that were only tried."""

    def __init__(self, modules: Sequence[nn.Module], optimiser: torch.optim.Optimizer):
        self.optimiser = optimiser
        tensors = [t for module in modules for t in module.state_dict(keep_vars=True).values()]
        self.kept = [(tensor, tensor.detach().clone()) for tensor in tensors + self._state()]

    def _state(self) -> list[Tensor]:
        values = [value for state in self.optimiser.state.values() for value in state.values()]
        return [value for value in values if isinstance(value, Tensor)]

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back, in place; what the optimiser did not know before becomes zero."""
        known = {id(tensor) for tensor, _ in self.kept}
        for tensor in self._state():
            if id(tensor) not in known:
                tensor.zero_()
        for tensor, value in self.kept:
            tensor.copy_(value)
        self.optimiser.zero_grad(set_to_none=True)


def replay(graph: torch.cuda.CUDAGraph, random: bool) -> None:
    """Replay a graph on the current stream; ``random``: it draws random numbers."""
    global _last_random
    if random and _last_random is not None:
        torch.cuda.current_stream().wait_event(_last_random)
    graph.replay()
    if random:
        _last_random = torch.cuda.current_stream().record_event()


def warm_up(step: Callable[[], object], watched: bool = False) -> bool:
    """Do a step a few times before it is captured; returns whether it draws random numbers.

    Args:
        step: as it will be captured.
        watched: the last time, refuse with a RuntimeError whatever waits for the device. No graph can hold
            that, and a capture that breaks off leaves more behind than an error.
    """
    torch.cuda.synchronize()  # libraries choose kernels by their time, which others' work would disturb
    before = torch.cuda.get_rng_state()
    side = stream_to_capture_on()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for left in reversed(range(_WARM_UP_STEPS)):
            with _nothing_waits() if watched and left == 0 else nullcontext():
                step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    return not torch.equal(before, torch.cuda.get_rng_state())


def stream_to_capture_on() -> torch.cuda.Stream:
    """The current stream, or one aside where that is the default one, on which nothing can be captured.

    Libraries keep a workspace for each stream, and a graph goes on using that of the stream it was captured
    on. Trainings that take turns have streams of their own; captured on one and the same, their graphs would
    write into one workspace at the same time.
    """
    current = torch.cuda.current_stream()
    return _aside(torch.cuda.current_device()) if current == torch.cuda.default_stream() else current


@cache
def _aside(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@contextmanager
def _nothing_waits() -> Iterator[None]:
    """Operations that wait for the device raise a RuntimeError."""
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)
