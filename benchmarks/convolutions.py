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
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from refilled.labels import LabelSpace
from refilled.models import load
from refilled.training import make_deterministic

try:
    import triton

    import convolution_kernels as kernels
except ImportError:  # only a GPU needs it
    kernels = None  # type: ignore[assignment]

CLASSES = 100
_AT_ONCE = 50  # calls in a graph: fewer would be bound by the host


class ConvolvePlan(NamedTuple):
    """How a convolution, or the gradient of the maps before it, is divided."""

    pixels: int = 128
    """Of a program."""
    outputs: int = 64
    """Most that a program has."""
    channels: int = 64
    """Most of a step."""
    warps: int = 4
    stages: int = 3
    """Loads ahead, which go round the nearest cache; 1: none, and they go through it."""


class WeightPlan(NamedTuple):
    """How the gradient of the weights is divided."""

    taps: int = 3
    """Of a program: 1, 3 or 9 (with 3x3)."""
    channels: int = 64
    """Most that a program has of the maps before."""
    outputs: int = 64
    """Most that a program has of the maps behind."""
    step: int = 64
    """Pixels of a step."""
    programs: int = 132
    """About so many at once."""
    warps: int = 4
    stages: int = 3


class Plans(NamedTuple):
    """Of the three parts of a convolution; None: the library's."""

    forward: ConvolvePlan | None = None
    maps: ConvolvePlan | None = None
    weights: WeightPlan | None = None


CONVOLVE_PLANS = [ConvolvePlan(), ConvolvePlan(pixels=64), ConvolvePlan(pixels=64, stages=1)]
WEIGHT_PLANS = [
    *(WeightPlan(programs=number) for number in (264, 132, 66, 33)),
    WeightPlan(programs=132, stages=1),
    WeightPlan(programs=66, taps=1, channels=128, outputs=128, warps=8),
]


def convolve(x: Tensor, weight: Tensor, stride: int, plan: ConvolvePlan, back: bool = False) -> Tensor:
    """The convolution of maps [N, C, H, W] by weights [D, C, side, side], with borders of side // 2, all in
    channels-last memory; back: of gradients [N, D, H, W], to those of the maps before, without strides."""
    side = weight.shape[-1]
    images, inner, height, width = x.shape
    outer = weight.shape[1] if back else weight.shape[0]
    down, across = -(-height // stride), -(-width // stride)
    y = torch.empty(
        images, outer, down, across, dtype=x.dtype, device=x.device, memory_format=torch.channels_last
    )
    pixels, block = images * down * across, min(outer, plan.outputs)
    kernels.convolve[(outer // block, triton.cdiv(pixels, plan.pixels))](
        x, weight, y, pixels, height, width, down, across,
        K=inner, N=outer, BK=min(inner, plan.channels), BN=block, M=plan.pixels, SIDE=side, STRIDE=stride,
        BACK=back, num_warps=plan.warps, num_stages=plan.stages,
    )  # fmt: skip
    return y


def weight_gradient(x: Tensor, g: Tensor, side: int, stride: int, plan: WeightPlan) -> Tensor:
    """Gradient float32 [D, C, side, side] by maps x [N, C, H, W] before and gradients g [N, D, H', W'] behind
    a convolution with borders of side // 2; both in channels-last memory, and the gradient too."""
    (_, channels, height, width), (images, outputs, down, across) = x.shape, g.shape
    pixels, taps = images * down * across, side * side
    block_c, block_d = min(channels, plan.channels), min(outputs, plan.outputs)
    here = plan.taps if side == 3 else 1
    blocks = 1 if channels < 16 else taps // here * (channels // block_c) * (outputs // block_d)
    parts = max(1, min(plan.programs // blocks, pixels // (2 * plan.step)))
    each = triton.cdiv(triton.cdiv(pixels, parts), plan.step) * plan.step
    parts = triton.cdiv(pixels, each)
    out = torch.empty(parts, outputs, side, side, channels, dtype=torch.float32, device=x.device)
    common: dict[str, Any] = {"M": plan.step, "SIDE": side, "STRIDE": stride}
    common |= {"num_warps": plan.warps, "num_stages": plan.stages}
    if channels < 16:
        columns = max(16, triton.next_power_of_2(taps * channels))
        kernels.weight_gradient_of_few[(parts,)](
            x, g, out, pixels, each, height, width, down, across, C=channels, K=columns, D=outputs, **common
        )
    else:
        kernels.weight_gradient[(blocks, parts)](
            x, g, out, pixels, each, height, width, down, across,
            C=channels, D=outputs, BC=block_c, BD=block_d, TAPS=here, **common,
        )  # fmt: skip
    return out.sum(dim=0).permute(0, 3, 1, 2)


def library(g: Tensor, x: Tensor, weight: Tensor, stride: int, which: int) -> Tensor:
    """The library's gradient of the maps (0) or of the weights (1), in the type of the maps."""
    border, wanted = [weight.shape[-1] // 2] * 2, [number == which for number in range(3)]
    return torch.ops.aten.convolution_backward(
        g, x, weight, None, [stride] * 2, border, [1, 1], False, [0, 0], 1, wanted
    )[which]


class Convolution(torch.autograd.Function):
    """A convolution with parts of our own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int, plans: Plans) -> Tensor:
        """Maps behind it; the weights are float32, the maps may be bfloat16."""
        ctx.stride, ctx.plans = stride, plans
        x = x.contiguous(memory_format=torch.channels_last)
        ours = weight.to(x.dtype, memory_format=torch.channels_last)
        ctx.save_for_backward(x, ours)
        if plans.forward is not None and x.shape[1] >= 16:
            return convolve(x, ours, stride, plans.forward)
        return F.conv2d(x, ours, None, stride, weight.shape[-1] // 2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor, None, None]:  # type: ignore[override]
        """Gradients of maps and weights."""
        x, weight = ctx.saved_tensors
        stride, plans = ctx.stride, ctx.plans
        g = g.contiguous(memory_format=torch.channels_last)
        of_x = None
        if ctx.needs_input_grad[0]:
            own = plans.maps is not None and stride == 1
            of_x = convolve(g, weight, 1, plans.maps, True) if own else library(g, x, weight, stride, 0)
        if plans.weights is not None:
            return of_x, weight_gradient(x, g, weight.shape[-1], stride, plans.weights), None, None
        return of_x, library(g, x, weight, stride, 1).float(), None, None


class OurConv(nn.Conv2d):
    """A layer with it; others become one by their class alone."""

    plans: Plans

    def forward(self, x: Tensor) -> Tensor:
        """As any convolution."""
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        with torch.autocast(kind, enabled=False):
            return Convolution.apply(x.to(dtype), self.weight, self.stride[0], self.plans)


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
    student(torch.rand(2, 3, 32, 32, device=device))
    for hook in hooks:
        hook.remove()
    yield from found.values()


def refused(network: nn.Module) -> str | None:
    """Why these kernels are not for a network."""
    for layer in network.modules():
        if not isinstance(layer, nn.Conv2d):
            continue
        side, inputs, outputs = layer.kernel_size[0], layer.in_channels, layer.out_channels
        plain = layer.groups == 1 and layer.bias is None and layer.dilation == (1, 1)
        if not plain or side not in (1, 3) or layer.padding != (side // 2, side // 2):
            return f"{layer}: only plain convolutions with sides of 1 and 3 and full borders are known"
        if outputs & (outputs - 1) or outputs < 16 or (inputs >= 16 and inputs & (inputs - 1)):
            return f"{layer}: numbers of channels must be powers of two"
    return None


def captured(work: Callable[[], Any], stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """The work as a graph."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            work()
    return graph


def microseconds(graphs: list[torch.cuda.CUDAGraph], streams: list[torch.cuda.Stream], times: int) -> float:
    """Of one graph, while all are replayed beside each other: the median of five."""
    found = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(times):
            for graph, stream in zip(graphs, streams):
                with torch.cuda.stream(stream):
                    graph.replay()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - start) / times / len(graphs) * 1e6)
    return statistics.median(found)


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
    network: Any = load(spec, LabelSpace(str(label) for label in range(CLASSES)), image_size=32)
    network = network.to(device, memory_format=torch.channels_last).train()
    if any(plans):
        for layer in network.modules():
            if type(layer) is nn.Conv2d:
                layer.__class__, layer.plans = OurConv, plans
    optimiser = torch.optim.SGD(
        network.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=True
    )
    images = torch.randn(size, 3, 32, 32, device=device).contiguous(memory_format=torch.channels_last)
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
    network = load(asked.student, LabelSpace(str(label) for label in range(CLASSES)), image_size=32)
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
    main()
