"""Kernels of a benchmark's candidate. They need Triton, and a GPU or its interpreter (TRITON_INTERPRET=1)."""

import os
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NEAR = 1e-5 if DEVICE == "cpu" else 2e-3  # a GPU rounds to tf32
SHAPES = [
    (16, 32, 8, 3, 1), (32, 32, 6, 3, 1), (32, 64, 8, 3, 2), (64, 128, 7, 3, 2), (128, 128, 4, 3, 1),
    (16, 32, 8, 1, 1), (32, 64, 9, 1, 2),
]  # fmt: skip
"""Channels, outputs, width, side and stride."""
pytest.importorskip("triton")
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a CUDA device or TRITON_INTERPRET=1", allow_module_level=True)


@pytest.fixture
def candidate(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import our_convolution

    return our_convolution


def error(ours, expected):
    """The largest difference, as a part of the largest value."""
    return float((ours.float() - expected.float()).abs().max() / expected.float().abs().max())


def last(maps):
    return maps.contiguous(memory_format=torch.channels_last)


def make_layer(channels, outputs, width, side, stride):
    """Maps before, weights, maps behind, a gradient behind."""
    x = last(torch.randn(3, channels, 6, width, device=DEVICE))
    weight = last(torch.randn(outputs, channels, side, side, device=DEVICE))
    y = F.conv2d(x, weight, None, stride, side // 2)
    return x, weight, y, last(torch.randn_like(y))


@pytest.mark.parametrize(
    "plan",
    [{}, {"pixels": 16, "outputs": 16, "channels": 16}, {"outputs": 128, "channels": 128, "stages": 1}],
)
@pytest.mark.parametrize("shape", SHAPES)
def test_maps_are_the_librarys(candidate, shape, plan):
    x, weight, y, g = make_layer(*shape)
    stride, plan = shape[-1], candidate.ConvolvePlan(**plan)
    assert error(candidate.convolve(x, weight, stride, plan), y) < NEAR
    if stride == 1:
        found = candidate.convolve(g, weight, 1, plan, back=True)
        assert error(found, candidate.library(g, x, weight, 1, 0)) < NEAR


@pytest.mark.parametrize(
    "plan",
    [
        {"step": 16, "programs": 40},
        {"taps": 1, "step": 16, "programs": 64, "channels": 32, "outputs": 16},
        {"channels": 128, "outputs": 128, "step": 32, "stages": 1},
        {"channels": 16, "outputs": 32, "step": 32, "taps": 9},
    ],
)
@pytest.mark.parametrize("shape", [(3, 16, 8, 3, 1), (1, 16, 5, 3, 1), *SHAPES])
def test_gradients_of_weights_are_the_librarys(candidate, shape, plan):
    x, weight, _, g = make_layer(*shape)
    *_, side, stride = shape
    expected = candidate.library(g, x, weight, stride, 1)
    found = candidate.weight_gradient(x, g, side, stride, candidate.WeightPlan(**plan))
    assert found.shape == expected.shape
    assert error(found, expected) < NEAR


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_layer_gives_the_librarys_maps_and_gradients(candidate, stride, dtype):
    if (DEVICE, dtype) == ("cpu", torch.bfloat16):
        pytest.skip("the interpreter multiplies no bfloat16")
    layer = torch.nn.Conv2d(16, 32, 3, padding=1, stride=stride, bias=False).to(DEVICE)
    ours = torch.nn.Conv2d(16, 32, 3, padding=1, stride=stride, bias=False).to(DEVICE)
    ours.load_state_dict(layer.state_dict())
    ours.__class__ = candidate.OurConv
    ours.plans = candidate.Plans(
        candidate.ConvolvePlan(), candidate.ConvolvePlan(), candidate.WeightPlan(step=16)
    )
    x = last(torch.randn(2, 16, 6, 6, device=DEVICE)).requires_grad_()
    found, expected = [], []
    for one, results in ((ours, found), (layer, expected)):
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            y = one(x)
        results += [y, *torch.autograd.grad(y, [x, one.weight], torch.ones_like(y))]
    for mine, wanted in zip(found, expected):
        assert mine.dtype == wanted.dtype
        assert error(mine, wanted) < (NEAR if dtype == torch.float32 else 0.02)
