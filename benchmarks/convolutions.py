"""Our convolutions and their gradients against the library's.

    python benchmarks/convolutions.py                           # needs a GPU and Triton
    python benchmarks/convolutions.py --student wrn-40-2 --batch-size 256 --together 1 4 8

First each convolution of the student by itself, alone and four at once, then whole compiled training steps in
captured graphs, several at once: with the library's, and with ours (refilled.models.convolution). With
--plans, other ways to divide the work are compared, too: what to look at on another kind of GPU.
"""

import argparse
import contextlib
import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch._inductor.config
from torch import Tensor, nn
from torch.nn import functional as F

from command import run
from refilled.labels import LabelSpace
from refilled.models import convolution, load
from refilled.models.convolution_calls import (
    ConvolvePlan,
    WeightPlan,
    convolve,
    convolve_plan,
    library,
    map_gradient,
    weight_gradient,
    weight_plan,
)
from refilled.training import make_deterministic
from refilled.training.replay import warm_up
from timing import clock
from world import CLASSES, SIDE

_AT_ONCE = 50  # calls in a graph: fewer would be bound by the host
CONVOLVE_PLANS = [
    ConvolvePlan(64, 4), ConvolvePlan(64, 4, stages=1), ConvolvePlan(128, 4), ConvolvePlan(128, 8),
    ConvolvePlan(128, 8, outputs=128), ConvolvePlan(256, 8),
]  # fmt: skip
WEIGHT_PLANS = [
    *(WeightPlan(programs) for programs in (264, 132, 66)), WeightPlan(132, channels=64),
    WeightPlan(132, stages=1), WeightPlan(132, step=128), WeightPlan(132, taps=1),
]  # fmt: skip


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


def ways_of(layer: Layer, part: str, more: bool) -> dict[Any, Callable[[], Tensor]]:
    """By plan, None for the library: one of the three parts of a convolution, by the library and by the plan
    that is used, if there is one; more: by all plans."""
    _, x, g, weight, stride, _ = layer
    plans: list[Any]
    if part == "forward":
        plans = [convolve_plan(g.shape[1]), *CONVOLVE_PLANS * more]
        ours = {plan: lambda plan=plan: convolve(x, weight, stride, plan) for plan in plans}
        return {None: lambda: F.conv2d(x, weight, None, stride, layer.side // 2)} | ours
    if part == "maps":
        size = (x.shape[2], x.shape[3])
        plans = [convolve_plan(x.shape[1]), *CONVOLVE_PLANS * more] if x.shape[1] >= 16 else []
        ours = {plan: lambda plan=plan: map_gradient(g, weight, stride, size, plan) for plan in plans}
        return {None: lambda: library(g, x, weight, stride, 0)} | ours
    used = weight_plan(x.shape[1], g.shape[1], layer.side)
    plans = [*([] if used is None else [used]), *WEIGHT_PLANS * more]
    ours = {plan: lambda plan=plan: weight_gradient(x, g, layer.side, stride, plan) for plan in plans}
    return {None: lambda: library(g, x, weight, stride, 1)} | ours


def compare(layers: list[Layer], part: str, streams: list[torch.cuda.Stream], more: bool) -> None:
    """Microseconds of that part of each layer: the library's and ours, alone and on all streams at once."""
    totals = [[0.0, 0.0], [0.0, 0.0]]
    for layer in layers:
        ways, found = ways_of(layer, part, more), list[tuple[float, float]]()
        for plan, work in ways.items():
            if not (apart := error(work(), ways[None]())) < 0.02:
                raise RuntimeError(f"{part} of {layer.name}: {plan} is wrong by {apart:.3f}")

            def several(work: Callable[[], Tensor] = work) -> None:
                for _ in range(_AT_ONCE):
                    work()

            graphs = [captured(several, stream) for stream in streams]
            alone, all_of_them = graphs[:1], graphs
            times = [microseconds(some, streams, 3) / _AT_ONCE for some in (alone, all_of_them)]
            found.append((times[0], times[1]))
        if len(found) > 1:
            for total, times_of_way in zip(totals, found):
                for place, value in enumerate(times_of_way):
                    total[place] += layer.times * value
        numbers = ", ".join(
            f"{tuple(plan) if plan else 'library'} {one:.1f} / {each:.1f}"
            for plan, (one, each) in zip(ways, found)
        )
        print(f"{part} of {layer.name}, {layer.times} times: {numbers}", flush=True)
    if not more:
        (one, each), (our_one, our_each) = totals
        numbers = f"library {one:.0f} / {each:.0f} us, ours {our_one:.0f} / {our_each:.0f}"
        print(f"{part} in all where there are ours: {numbers}", flush=True)


def make_step(spec: str, size: int, device: torch.device) -> Callable[[], None]:
    """A compiled training step with fixed images: forward, cross-entropy, backward, SGD."""
    network: Any = load(spec, LabelSpace(str(label) for label in range(CLASSES)), image_size=SIDE)
    network = network.to(device, memory_format=torch.channels_last).train()
    optimiser = torch.optim.SGD(
        network.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=True
    )
    images = torch.randn(size, 3, SIDE, SIDE, device=device).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, CLASSES, (size,), device=device)
    embed = torch.compile(type(network).embed_prepared)

    def step() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = network.head(embed(network, images))
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
    parser.add_argument("--plans", action="store_true", help="compare other ways to divide the work, too")
    parser.add_argument("--steps-only", action="store_true", help="leave out single convolutions")
    parser.add_argument("--combine", action="store_true", help="let the compiler put small kernels together")
    asked = parser.parse_args()
    if convolution.kernels is None or not torch.cuda.is_available():
        parser.error("this needs a GPU and Triton")
    make_deterministic(False)
    device = torch.device("cuda")
    streams = [torch.cuda.Stream() for _ in range(max(asked.together))]
    network = load(asked.student, LabelSpace(str(label) for label in range(CLASSES)), image_size=SIDE)
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d) and not convolution.is_known(layer):
            parser.error(f"{asked.student}: {layer} is not one that our kernels know")
    layers = list(convolutions(network.to(device), asked.batch_size, device))
    for part in () if asked.steps_only else ("forward", "maps", "weights"):
        compare(layers, part, streams[:4], asked.plans)
    ways: dict[str, Any] = {
        "the library's": mock.patch.object(convolution, "kernels", None),
        "ours": contextlib.nullcontext(),
    }
    torch._inductor.config.combo_kernels = asked.combine
    for whose, way in ways.items():
        torch._dynamo.reset()
        with way:
            steps = [make_step(asked.student, asked.batch_size, device) for _ in streams]
            graphs = [captured(step, stream) for step, stream in zip(steps, streams)]
        for number in asked.together:
            each = microseconds(graphs[:number], streams[:number], 50)
            rate = asked.batch_size / each * 1e3
            print(f"{whose}, {number} together: {each:.0f} us a step, {rate:.0f}k images/s", flush=True)


if __name__ == "__main__":
    run(main)
