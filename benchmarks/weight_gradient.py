"""A candidate: the gradient of a convolution's weights by kernels of our own, against the library's.

    python benchmarks/weight_gradient.py                 # needs a GPU and Triton
    python benchmarks/weight_gradient.py --student wrn-40-2 --batch-size 64 --together 1 4 8

First each convolution of the student by itself, then whole training steps in captured graphs, several at
once. Where a GPU is shared by several small trainings, the gradients of weights are half of what they wait
for (results/speed.md), far below what the device can do.
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

    import weight_gradient_kernels as kernels
except ImportError:  # only a GPU needs it
    kernels = None  # type: ignore[assignment]

CLASSES = 100


class Plan(NamedTuple):
    """How the work is divided."""

    taps: int = 3
    """Of a program: one, or a line of three."""
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


PLANS = [
    Plan(programs=264),
    Plan(programs=132),
    Plan(programs=66),
    Plan(programs=33),
    Plan(programs=66, taps=1, channels=128, outputs=128, warps=8),
    Plan(programs=132, taps=1, channels=128, outputs=128, warps=8),
]


def weight_gradient(x: Tensor, g: Tensor, side: int, stride: int, plan: Plan) -> Tensor:
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
        kernels.narrow[(parts,)](
            x, g, out, pixels, each, height, width, down, across, C=channels, K=columns, D=outputs, **common
        )
    else:
        kernels.wide[(blocks, parts)](
            x, g, out, pixels, each, height, width, down, across,
            C=channels, D=outputs, BC=block_c, BD=block_d, TAPS=here, **common,
        )  # fmt: skip
    return out.sum(dim=0).permute(0, 3, 1, 2)


def library_gradient(x: Tensor, g: Tensor, weight: Tensor, stride: int) -> Tensor:
    """The same by the library, in the type of the weights."""
    return _backward(g, x, weight, stride, (False, True, False))[1]


def _backward(
    g: Tensor, x: Tensor, weight: Tensor, stride: int, wanted: tuple[bool, ...]
) -> tuple[Tensor, ...]:
    border = [weight.shape[-1] // 2] * 2
    return torch.ops.aten.convolution_backward(
        g, x, weight, None, [stride] * 2, border, [1, 1], False, [0, 0], 1, list(wanted)
    )


class Convolution(torch.autograd.Function):
    """A convolution whose weights' gradient is ours."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int, plan: Plan) -> Tensor:
        """Maps behind it; the weights are float32, the maps may be bfloat16."""
        ctx.stride, ctx.plan = stride, plan
        ours = weight.to(x.dtype)
        ctx.save_for_backward(x, ours)
        return F.conv2d(x, ours, None, stride, weight.shape[-1] // 2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor, None, None]:  # type: ignore[override]
        """Gradients of maps and weights."""
        x, weight = ctx.saved_tensors
        g = g.contiguous(memory_format=torch.channels_last)
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = _backward(g, x, weight, ctx.stride, (True, False, False))[0]
        return of_x, weight_gradient(x, g, weight.shape[-1], ctx.stride, ctx.plan), None, None


class OurConv(nn.Conv2d):
    """A layer with it; others take its place by their class alone."""

    plan: Plan

    def forward(self, x: Tensor) -> Tensor:
        """As any convolution."""
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        with torch.autocast(kind, enabled=False):
            return Convolution.apply(x.to(dtype), self.weight, self.stride[0], self.plan)


Layer = tuple[str, Tensor, Tensor, nn.Conv2d]
"""Its name, maps before it, gradients behind it, and itself."""


def convolutions(student: nn.Module, size: int, device: torch.device) -> Iterator[Layer]:
    """Each different convolution of a network, with maps before and gradients behind it, in bfloat16."""
    found: dict[tuple[Any, ...], Layer] = {}

    def look(layer: nn.Conv2d, given: tuple[Tensor, ...], out: Tensor) -> None:
        before, behind = (
            torch.randn(size, *maps.shape[1:], device=device)
            .to(torch.bfloat16)
            .contiguous(memory_format=torch.channels_last)
            for maps in (given[0], out)
        )
        _, channels, side, _ = before.shape
        key = (channels, out.shape[1], side, layer.kernel_size[0], layer.stride[0])
        name = f"{channels:3d} to {out.shape[1]:3d}, {side}x{side}, {key[3]}x{key[3]} / {key[4]}"
        found.setdefault(key, (name, before, behind, layer))

    hooks = [layer.register_forward_hook(look) for layer in student.modules() if isinstance(layer, nn.Conv2d)]
    student(torch.rand(2, 3, 32, 32, device=device))
    for hook in hooks:
        hook.remove()
    yield from found.values()


def captured(work: Callable[[], Any], stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """The work as a graph."""
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


def error(ours: Tensor, library: Tensor) -> float:
    """The largest difference, as a part of the largest value."""
    return float((ours.float() - library.float()).abs().max() / library.float().abs().max())


def compare_layers(
    student: nn.Module, size: int, streams: list[torch.cuda.Stream], device: torch.device
) -> Plan:
    """Microseconds of each convolution's weights' gradient; returns the plan that is best in all."""
    totals = dict.fromkeys(PLANS, 0.0)
    for name, x, g, layer in convolutions(student, size, device):
        side, stride = layer.kernel_size[0], layer.stride[0]
        weight = layer.weight.detach().to(torch.bfloat16).contiguous(memory_format=torch.channels_last)
        ways: dict[str, Callable[[], Tensor]] = {
            "library": lambda x=x, g=g, w=weight, s=stride: library_gradient(x, g, w, s)
        }
        for number, plan in enumerate(PLANS):
            ways[str(number)] = lambda x=x, g=g, k=side, s=stride, p=plan: weight_gradient(x, g, k, s, p)
        found = {}
        for way, work in ways.items():
            apart = error(work(), ways["library"]())
            if not apart < 0.02:
                raise RuntimeError(f"{name}: plan {way} is wrong by {apart:.3f}")

            def several(work: Callable[[], Tensor] = work) -> None:
                for _ in range(10):
                    work()

            graphs = [captured(several, stream) for stream in streams]
            found[way] = microseconds(graphs, streams, 5) / 10
        for number, plan in enumerate(PLANS):
            totals[plan] += found[str(number)]
        print(f"{name}: " + ", ".join(f"{way} {value:.1f}" for way, value in found.items()), flush=True)
    best = min(totals, key=totals.__getitem__)
    print(f"best in all: {PLANS.index(best)}, {best}")
    return best


def make_step(
    spec: str, size: int, plan: Plan | None, compile: bool, device: torch.device
) -> Callable[[], None]:
    """A training step with fixed images: forward, cross-entropy, backward, SGD."""
    network: Any = load(spec, LabelSpace(str(label) for label in range(CLASSES)), image_size=32)
    network = network.to(device, memory_format=torch.channels_last).train()
    if plan is not None:
        for layer in network.modules():
            if type(layer) is nn.Conv2d:
                layer.__class__, layer.plan = OurConv, plan
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
    device, most = torch.device("cuda"), max(asked.together)
    streams = [torch.cuda.Stream() for _ in range(most)]
    network = load(asked.student, LabelSpace(str(label) for label in range(CLASSES)), image_size=32)
    plan = compare_layers(network.to(device), asked.batch_size, streams[:4], device)
    for way, chosen in (("library", None), ("ours", plan)):
        steps = [make_step(asked.student, asked.batch_size, chosen, asked.compile, device) for _ in streams]
        graphs = [captured(step, stream) for step, stream in zip(steps, streams)]
        for number in asked.together:
            each = microseconds(graphs[:number], streams[:number], 50)
            rate = asked.batch_size / each * 1e3
            print(f"{way}, {number} together: {each:.0f} us a step, {rate:.0f}k images/s", flush=True)


if __name__ == "__main__":
    main()
