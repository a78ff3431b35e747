"""The least time that a training step can take on a device, from what it must compute and move.

*Operations*: two for each multiplication with its addition, of convolutions and linear layers. A training
step is three forward passes of the student (one forward, two for the two gradients) and one of the teacher,
where it is asked in the step.

*Bytes*: a convolution or linear layer reads its input and weights and writes its output, once forward and
twice that much backward. A batch norm in training reads and writes its maps once more forward, and reads two
and writes one backward. A frozen teacher's batch norms are free, since they can be part of the convolutions.
All that can be done while a number is at hand is free: activations, sums, augmentation, loss; so is the
optimizer. Numbers have the width that we train with (bfloat16 on a GPU, float32 else).

The floor is the longer of operations / measured rate of a large product of matrices, and bytes / measured
bandwidth of a large copy. It is a bound, not an aim: convolutions of few channels cannot fill the units that
multiply matrices, and neither rate is reached by small kernels. Nor is it quite a law: some algorithms for
3x3 convolutions (Winograd's) multiply less than is counted here, and a rate that was measured while others
used the machine is too low.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from refilled.models import Network

_TRIES = 5


@dataclass(frozen=True)
class Counts:
    """What a forward pass is made of."""

    products: int = 0
    """Multiplications with addition, per image."""
    touched: int = 0
    """Numbers that convolutions and linear layers read and write, per image."""
    weights: int = 0
    """Numbers in their weights."""
    normed: int = 0
    """Numbers that batch norms are applied to, per image."""


@dataclass(frozen=True)
class Rates:
    """What a device does at its best."""

    operations: float
    """Floating-point operations per second."""
    bytes: float
    """Bytes read and written per second."""

    def best(self, other: "Rates") -> "Rates":
        """The better of two measurements."""
        return Rates(max(self.operations, other.operations), max(self.bytes, other.bytes))


@torch.no_grad()
def count(network: Network, side: int) -> Counts:
    """Counts of one image's way through a network, watched as it happens."""
    sums = dict.fromkeys(Counts.__dataclass_fields__, 0)

    def watch(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(layer, nn.BatchNorm2d):
            sums["normed"] += output.numel()
            return
        assert isinstance(layer, nn.Conv2d | nn.Linear)
        sums["products"] += output.numel() * layer.weight[0].numel()
        sums["touched"] += inputs[0].numel() + output.numel()
        sums["weights"] += layer.weight.numel()

    layers = [each for each in network.modules() if isinstance(each, nn.Conv2d | nn.Linear | nn.BatchNorm2d)]
    hooks = [layer.register_forward_hook(watch) for layer in layers]
    network.eval()(torch.zeros(1, network.preprocess.channels, side, side, device=network.device))
    for hook in hooks:
        hook.remove()
    return Counts(**sums)


def demands(student: Counts, teacher: Counts | None, batch_size: int, width: int) -> tuple[float, float]:
    """Operations and bytes of a training step.

    Args:
        student: trained.
        teacher: asked in the step; None: looked up, or there is none.
        batch_size: images of a step.
        width: bytes of a number.
    """
    operations = 6 * student.products * batch_size
    moved = 3 * (student.touched * batch_size + student.weights) + 5 * student.normed * batch_size
    if teacher is not None:
        operations += 2 * teacher.products * batch_size
        moved += teacher.touched * batch_size + teacher.weights
    return operations, moved * width


def floor(operations: float, moved: float, rates: Rates) -> tuple[float, str]:
    """The least seconds for that many operations and bytes, and which of the two it is."""
    return max((operations / rates.operations, "operations"), (moved / rates.bytes, "bytes"))


def measure_rates(device: torch.device, tiny: bool = False) -> Rates:
    """The best of a few products of large matrices, and of a few large copies."""
    on_gpu = device.type == "cuda"
    side, size = (8192, 2**31) if on_gpu else (2048, 2**28)
    if tiny:
        side, size = 256, 2**20
    dtype = torch.bfloat16 if on_gpu else torch.float32
    left, right = torch.randn(2, side, side, device=device, dtype=dtype)
    product = torch.empty_like(left)
    seconds = _best(lambda: torch.mm(left, right, out=product), device)
    operations = 2 * side**3 / seconds
    source = torch.randint(0, 256, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return Rates(operations, 2 * size / _best(lambda: target.copy_(source), device))


def _best(work: Callable[[], Tensor], device: torch.device) -> float:
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    at_a_time = 5 if device.type == "cuda" else 1
    work()
    found = []
    for _ in range(_TRIES):
        wait()
        start = time.perf_counter()
        for _ in range(at_a_time):
            work()
        wait()
        found.append((time.perf_counter() - start) / at_a_time)
    return min(found)
