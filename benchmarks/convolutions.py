"""A candidate: convolutions and their gradients by kernels of our own, against the library's.

    python benchmarks/convolutions.py --compile                 # needs a GPU and Triton
    python benchmarks/convolutions.py --student wrn-40-2 --batch-size 64 --together 1 4 8

First each convolution of the student by itself, then whole training steps in captured graphs, several at
once. Where several small trainings share a GPU, convolutions are most of what they wait for: in batches of 64
those of WRN-16-2 do a seventh of what the device can, and the gradients of their weights two fifths of that
(results/speed.md).
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from command import run
from our_convolution import (
    ConvolvePlan,
    OurConv,
    Plans,
    WeightPlan,
    convolve,
    kernels,
    library,
    refused,
    weight_gradient,
)
from refilled.labels import LabelSpace
from refilled.models import load
from refilled.training import make_deterministic
from refilled.training.replay import warm_up
from timing import clock
from world import CLASSES, SIDE

_AT_ONCE = 50  # calls in a graph: fewer would be bound by the host
CONVOLVE_PLANS = [ConvolvePlan(), ConvolvePlan(pixels=64), ConvolvePlan(pixels=64, stages=1)]
WEIGHT_PLANS = [
    *(WeightPlan(programs=number) for number in (264, 132, 66, 33)),
    WeightPlan(programs=132, stages=1),
    WeightPlan(programs=66, taps=1, channels=128, outputs=128, warps=8),
]


class Layer(NamedTuple):
    """A convolution, and what it is measured with."""

    name: str
    x: Tensor
    g: Tensor
    weight: Tensor
    stride: int
    times: int = 1
    """How often the network has it."""

    @property
    def side(self) -> int:
        """Of its weights."""
        return self.weight.shape[-1]


def convolutions(student: nn.Module, size: int, device: torch.device) -> Iterator[Layer]:
    """Each different convolution of a network, with maps before and gradients behind it, in bfloat16."""
    found: dict[str, Layer] = {}

    def last(maps: Tensor) -> Tensor:
        return maps.detach().to(torch.bfloat16).contiguous(memory_format=torch.channels_last)

    def look(layer: nn.Conv2d, given: tuple[Tensor, ...], out: Tensor) -> None:
        before, behind = (last(torch.randn(size, *maps.shape[1:], device=device)) for maps in (given[0], out))
        side, stride = layer.kernel_size[0], layer.stride[0]
        name = f"{before.shape[1]} to {out.shape[1]}, {before.shape[2]} pixels, {side}x{side} / {stride}"
        here = Layer(
            name, before, behind, last(layer.weight), stride, found[name].times + 1 if name in found else 1
        )
        found[name] = here

    hooks = [layer.register_forward_hook(look) for layer in student.modules() if isinstance(layer, nn.Conv2d)]
    student(torch.rand(2, 3, SIDE, SIDE, device=device))
    for hook in hooks:
        hook.remove()
    yield from found.values()


def captured(work: Callable[[], Any], stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """The work as a graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        warm_up(work)
        with torch.cuda.graph(graph, stream=stream):
            work()
    return graph


def microseconds(graphs: list[torch.cuda.CUDAGraph], streams: list[torch.cuda.Stream], times: int) -> float:
    """Of one graph, while all are replayed beside each other: the median of five."""

    def replay() -> None:
        for _ in range(times):
            for graph, stream in zip(graphs, streams):
                with torch.cuda.stream(stream):
                    graph.replay()

    seconds = statistics.median(clock(torch.device("cuda"), replay)[0] for _ in range(5))
    return seconds / times / len(graphs) * 1e6


def error(ours: Tensor, expected: Tensor) -> float:
    """The largest difference, as a part of the largest value."""
    return float((ours.float() - expected.float()).abs().max() / expected.float().abs().max())


def ways_of(layer: Layer, part: str) -> dict[Any, Callable[[], Tensor]]:
    """By plan, None for the library: the three parts of a convolution; no plan where ours does not do it."""
    _, x, g, weight, stride, _ = layer
    if part == "forward":
        ways: dict[Any, Callable[[], Tensor]] = {
            None: lambda: F.conv2d(x, weight, None, stride, layer.side // 2)
        }
        plans = CONVOLVE_PLANS if x.shape[1] >= 16 else []
        return ways | {plan: lambda plan=plan: convolve(x, weight, stride, plan) for plan in plans}
    if part == "maps":
        plans = CONVOLVE_PLANS if stride == 1 and x.shape[1] >= 16 else []
        ways = {None: lambda: library(g, x, weight, stride, 0)}
        return ways | {plan: lambda plan=plan: convolve(g, weight, 1, plan, True) for plan in plans}
    return {None: lambda: library(g, x, weight, stride, 1)} | {
        plan: lambda plan=plan: weight_gradient(x, g, layer.side, stride, plan) for plan in WEIGHT_PLANS
    }


def compare(layers: list[Layer], part: str, streams: list[torch.cuda.Stream]) -> Any:
    """Microseconds of that part of each layer, side by side; returns the plan that is best in all."""
    totals: dict[Any, float] = {}
    for layer in layers:
        ways, found = ways_of(layer, part), {}
        for plan, work in ways.items():
            if not (apart := error(work(), ways[None]())) < 0.02:
                raise RuntimeError(f"{part} of {layer.name}: {plan} is wrong by {apart:.3f}")

            def several(work: Callable[[], Tensor] = work) -> None:
                for _ in range(_AT_ONCE):
                    work()

            graphs = [captured(several, stream) for stream in streams]
            found[plan] = microseconds(graphs, streams, 3) / _AT_ONCE
        if len(found) > 1:
            totals = {plan: totals.get(plan, 0.0) + layer.times * value for plan, value in found.items()}
        numbers = ", ".join(f"{value:.1f}" for value in found.values())
        print(f"{part} of {layer.name}, {layer.times} times: {numbers}", flush=True)
    best = min(totals, key=totals.__getitem__)
    numbers = ", ".join(f"{value:.1f}" for value in totals.values())
    print(f"{part} in all: {numbers}; best: {best}", flush=True)
    return best


def make_step(spec: str, size: int, plans: Plans, compile: bool, device: torch.device) -> Callable[[], None]:
    """A training step with fixed images: forward, cross-entropy, backward, SGD."""
    network: Any = load(spec, LabelSpace(str(label) for label in range(CLASSES)), image_size=SIDE)
    network = network.to(device, memory_format=torch.channels_last).train()
    if any(plans):
        for layer in network.modules():
            if type(layer) is nn.Conv2d:
                layer.__class__, layer.plans = OurConv, plans
    optimiser = torch.optim.SGD(
        network.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=True
    )
    images = torch.randn(size, 3, SIDE, SIDE, device=device).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, CLASSES, (size,), device=device)
    method = type(network).feature_maps
    maps = torch.compile(method) if compile else method

    def step() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = network.head(maps(network, images)[-1].mean((2, 3)))
            loss = F.cross_entropy(logits.float(), labels)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()

    return step


def main() -> None:
    """Compare convolutions, then steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--student", default="wrn-16-2")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--together", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--compile", action="store_true", help="the network of a step")
    parser.add_argument("--all-algorithms", action="store_true", help="the library may try all that it has")
    asked = parser.parse_args()
    if kernels is None or not torch.cuda.is_available():
        parser.error("this needs a GPU and Triton")
    make_deterministic(False)
    if asked.all_algorithms:
        torch.backends.cudnn.benchmark_limit = 0
    device = torch.device("cuda")
    streams = [torch.cuda.Stream() for _ in range(max(asked.together))]
    network = load(asked.student, LabelSpace(str(label) for label in range(CLASSES)), image_size=SIDE)
    if (why := refused(network)) is not None:
        parser.error(f"{asked.student}: {why}")
    layers = list(convolutions(network.to(device), asked.batch_size, device))
    best = Plans(*(compare(layers, part, streams[:4]) for part in ("forward", "maps", "weights")))
    for plans in dict.fromkeys([Plans(), best]):
        steps = [make_step(asked.student, asked.batch_size, plans, asked.compile, device) for _ in streams]
        graphs = [captured(step, stream) for step, stream in zip(steps, streams)]
        ours = [part for part, plan in zip(Plans._fields, plans) if plan is not None]
        for number in asked.together:
            each = microseconds(graphs[:number], streams[:number], 50)
            rate = asked.batch_size / each * 1e3
            print(
                f"ours: {', '.join(ours) or 'nothing'}; {number} together: {each:.0f} us a step, "
                f"{rate:.0f}k images/s", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    run(main)
