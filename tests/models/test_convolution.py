"""Our kernels need Triton, and a GPU or its interpreter (TRITON_INTERPRET=1); their layer does not."""

import os
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from refilled.models import convolution, convolution_calls
from refilled.models.convolution import Conv, Convolution, is_known
from refilled.models.convolution_calls import ConvolvePlan, WeightPlan, library

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NEAR = 1e-5 if DEVICE == "cpu" else 2e-3  # a GPU rounds to tf32
SHAPES = [
    (16, 32, 8, 3, 1), (32, 32, 6, 3, 1), (32, 64, 8, 3, 2), (64, 128, 7, 3, 2), (128, 128, 4, 3, 1),
    (16, 32, 8, 1, 1), (32, 64, 9, 1, 2),
]  # fmt: skip
"""Channels, outputs, width, side and stride."""
FEW = [(3, 16, 8, 3, 1), (1, 16, 5, 3, 1), (3, 32, 7, 3, 2), (4, 16, 6, 1, 1)]
with_kernels = pytest.mark.skipif(
    convolution.kernels is None or (DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1"),
    reason="needs Triton, and a CUDA device or TRITON_INTERPRET=1",
)
on_gpu = pytest.mark.skipif(
    DEVICE == "cpu" or torch.cuda.get_device_capability() != (9, 0), reason="needs a GPU of capability 9.0"
)


def error(ours, expected):
    """The largest difference, as a part of the largest value."""
    ours, expected = ours.detach().float(), expected.detach().float()
    return float((ours - expected).abs().max() / expected.abs().max())


def last(maps):
    return maps.contiguous(memory_format=torch.channels_last)


def make_layer(channels, outputs, width, side, stride):
    """Maps before, weights, maps behind, a gradient behind."""
    x = last(torch.randn(3, channels, 6, width, device=DEVICE))
    weight = last(torch.randn(outputs, channels, side, side, device=DEVICE))
    y = F.conv2d(x, weight, None, stride, side // 2)
    return x, weight, y, last(torch.randn_like(y))


@with_kernels
@pytest.mark.parametrize(
    "plan",
    [
        ConvolvePlan(128, 8),
        ConvolvePlan(16, 4, outputs=16, channels=16),
        ConvolvePlan(128, 4, outputs=128, channels=128, stages=1),
    ],
)
@pytest.mark.parametrize("shape", [*FEW, *SHAPES])
def test_maps_are_the_librarys(shape, plan):
    x, weight, y, g = make_layer(*shape)
    stride = shape[-1]
    assert error(convolution_calls.convolve(x, weight, stride, plan), y) < NEAR
    if x.shape[1] >= 16:
        found = convolution_calls.map_gradient(g, weight, stride, tuple(x.shape[2:]), plan)
        assert found.is_contiguous(memory_format=torch.channels_last)
        assert error(found, library(g, x, weight, stride, 0)) < NEAR


@with_kernels
@pytest.mark.parametrize(
    "plan",
    [
        WeightPlan(40, step=16),
        WeightPlan(64, taps=1, step=16, outputs=16),
        WeightPlan(132, channels=128, outputs=128, step=32, stages=1),
        WeightPlan(132, channels=16, outputs=32, step=32, taps=9),
    ],
)
@pytest.mark.parametrize("shape", [*FEW, *SHAPES])
def test_gradients_of_weights_are_the_librarys(shape, plan):
    x, weight, _, g = make_layer(*shape)
    *_, side, stride = shape
    expected = library(g, x, weight, stride, 1)
    found = convolution_calls.weight_gradient(x, g, side, stride, plan)
    assert found.shape == expected.shape
    assert error(found, expected) < NEAR


@with_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [*FEW, *SHAPES])
def test_a_convolution_gives_the_librarys_maps_and_gradients(shape, dtype):
    """With the plans that are used; float32 weights have float32 gradients, whatever the maps are."""
    if (DEVICE, dtype) == ("cpu", torch.bfloat16):
        pytest.skip("the interpreter multiplies no bfloat16")
    x, weight, _, g = make_layer(*shape)
    *_, side, stride = shape
    x, g = x.to(dtype).requires_grad_(), g.to(dtype)
    weight.requires_grad_()
    y = Convolution.apply(x, weight, stride)
    expected = F.conv2d(x.float(), weight, None, stride, side // 2)
    assert (y.dtype, y.is_contiguous(memory_format=torch.channels_last)) == (dtype, True)
    found = [y, *torch.autograd.grad(y, [x, weight], g)]
    wanted = [expected, *torch.autograd.grad(expected, [x, weight], g.float())]
    assert [one.dtype for one in found] == [dtype, dtype, torch.float32]
    for mine, theirs in zip(found, wanted):
        assert error(mine, theirs) < (NEAR if dtype == torch.float32 else 0.02)


@with_kernels
def test_what_needs_no_gradient_gets_none(monkeypatch):
    """Images in front of a stem."""
    x, weight, _, g = make_layer(*SHAPES[0])
    monkeypatch.setattr(convolution, "library", None)
    y = Convolution.apply(x, weight.requires_grad_(), 1)
    monkeypatch.setattr(convolution, "map_gradient", None)
    (found,) = torch.autograd.grad(y, [weight], g)
    assert found.shape == weight.shape


@pytest.mark.parametrize(
    ("layer", "known"),
    [
        (Conv(32, 64, 3, padding=1, stride=2, bias=False), True),
        (Conv(64, 64, 1, bias=False), True),
        (Conv(3, 16, 3, padding=1, bias=False), True),
        (Conv(32, 64, 3, padding=1, stride=3, bias=False), False),
        (Conv(32, 64, 3, padding=1), False),
        (Conv(32, 64, 3, bias=False), False),
        (Conv(32, 64, 5, padding=2, bias=False), False),
        (Conv(32, 64, (3, 1), padding=(1, 0), bias=False), False),
        (Conv(32, 64, 3, padding=1, stride=(1, 2), bias=False), False),
        (Conv(32, 64, 3, padding=2, dilation=2, bias=False), False),
        (Conv(32, 64, 3, padding=1, groups=2, bias=False), False),
        (Conv(32, 64, 3, padding=1, padding_mode="reflect", bias=False), False),
        (Conv(48, 64, 3, padding=1, bias=False), False),
        (Conv(64, 160, 3, padding=1, bias=False), False),
        (Conv(64, 256, 3, padding=1, bias=False), False),
        (Conv(12, 64, 3, padding=1, bias=False), False),
    ],
)
def test_kernels_are_for_known_layers(layer, known):
    assert is_known(layer) == known


def test_without_a_gpu_it_is_the_librarys_layer():
    ours, theirs = (kind(16, 32, 3, padding=1, bias=False) for kind in (Conv, nn.Conv2d))
    theirs.load_state_dict(ours.state_dict())
    maps = torch.randn(2, 16, 5, 5)
    compiled = torch.compile(ours, backend="eager", fullgraph=True)
    assert torch.equal(ours(maps), theirs(maps))
    assert torch.equal(compiled(maps), theirs(maps))


def test_the_gpu_is_asked_for_once_and_does_not_break_the_graph(monkeypatch):
    """What decides is looked up while compiling."""
    asked = []
    monkeypatch.setattr(convolution, "kernels", object())
    monkeypatch.setattr(convolution, "triton", SimpleNamespace(__version__="3.6.0"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: asked.append(device) or (8, 0))

    def look(maps):
        return maps + 1 if convolution._is_known(maps.device.index or 0) else maps - 1

    compiled = torch.compile(look, backend="eager", fullgraph=True)
    assert compiled(torch.zeros(2)).tolist() == compiled(torch.zeros(2)).tolist() == [-1, -1]
    assert asked == [0]


@pytest.mark.parametrize(
    ("version", "capability", "known"),
    [("3.6.0", (9, 0), True), ("3.10.0", (9, 0), True), ("3.5.1", (9, 0), False), ("3.6.0", (8, 0), False)],
)
def test_kernels_are_for_what_they_were_tried_on(monkeypatch, version, capability, known):
    monkeypatch.setattr(convolution, "kernels", object())
    monkeypatch.setattr(convolution, "triton", SimpleNamespace(__version__=version))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert convolution._is_known(0) == known
    monkeypatch.setattr(convolution, "kernels", None)
    assert not convolution._is_known(0)


def test_an_exported_layer_is_the_librarys(monkeypatch):
    monkeypatch.setattr(convolution, "_is_known", lambda device: pytest.fail("asked for our kernels"))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)  # so it is while exporting
    assert convolution.own_type(SimpleNamespace(device=torch.device("cuda:0"))) is None


@on_gpu
@pytest.mark.parametrize("half", [True, False])
def test_compiled_layers_have_our_kernels_in_half_precision(half):
    """A stem, in memory that is not channels-last, strides, and a projection."""
    torch._dynamo.reset()
    layers = nn.Sequential(
        Conv(3, 16, 3, padding=1, bias=False), Conv(16, 32, 3, padding=1, stride=2, bias=False),
        Conv(32, 64, 1, bias=False),
    ).cuda()  # fmt: skip
    x = torch.randn(4, 3, 9, 8, device="cuda").requires_grad_()
    compiled = torch.compile(lambda maps: layers(maps), fullgraph=True)

    def results(way):
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=half):
            y = way(x)
        return [y, *torch.autograd.grad(y, [x, *layers.parameters()], torch.ones_like(y))]

    expected, found = results(layers), results(compiled)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        results(compiled)
        torch.cuda.synchronize()
    assert any(event.key.startswith("weight_gradient") for event in seen.key_averages()) == half
    for one, other in zip(found, expected):
        assert one.dtype == other.dtype
        assert error(one, other) < 0.02


def test_which_device_it_is_counts_as_known_while_compiling():
    """The mark that PyTorch sets itself, where that would import the compiler."""

    @torch.compiler.assume_constant_result
    def marked():
        """Nothing."""

    assert marked.__dict__
    assert marked.__dict__.items() <= convolution._is_known.__dict__.items()
