"""Kernels of a benchmark's candidate. They need Triton, and a GPU or its interpreter (TRITON_INTERPRET=1)."""

import os
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytest.importorskip("triton")
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a CUDA device or TRITON_INTERPRET=1", allow_module_level=True)


@pytest.fixture
def candidate(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import weight_gradient

    return weight_gradient


def last(maps):
    return maps.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "plan",
    [
        {"step": 16, "programs": 40},
        {"taps": 1, "step": 16, "programs": 64, "channels": 32, "outputs": 16},
        {"channels": 128, "outputs": 128, "step": 32},
    ],
)
@pytest.mark.parametrize(
    ("channels", "outputs", "width", "side", "stride"),
    [
        (3, 16, 8, 3, 1), (1, 16, 5, 3, 1), (16, 32, 8, 3, 1), (32, 32, 6, 3, 1), (32, 64, 8, 3, 2),
        (64, 128, 7, 3, 2), (128, 128, 4, 3, 1), (16, 32, 8, 1, 1), (32, 64, 9, 1, 2),
    ],
)  # fmt: skip
def test_it_is_the_librarys(candidate, channels, outputs, width, side, stride, plan):
    x = last(torch.randn(3, channels, 6, width, device=DEVICE))
    weight = torch.randn(outputs, channels, side, side, device=DEVICE)
    g = last(torch.randn_like(F.conv2d(x, weight, None, stride, side // 2)))
    expected = candidate.library_gradient(x, g, weight, stride)
    found = candidate.weight_gradient(x, g, side, stride, candidate.Plan(**plan))
    assert found.shape == expected.shape
    assert candidate.error(found, expected) < (1e-5 if DEVICE == "cpu" else 2e-3)  # a GPU rounds to tf32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_gives_the_librarys_gradients(candidate, dtype):
    if (DEVICE, dtype) == ("cpu", torch.bfloat16):
        pytest.skip("the interpreter multiplies no bfloat16")
    layer = torch.nn.Conv2d(16, 32, 3, padding=1, stride=2, bias=False).to(DEVICE)
    ours = torch.nn.Conv2d(16, 32, 3, padding=1, stride=2, bias=False).to(DEVICE)
    ours.load_state_dict(layer.state_dict())
    ours.__class__, ours.plan = candidate.OurConv, candidate.Plan(step=16)
    x = last(torch.randn(2, 16, 6, 6, device=DEVICE)).requires_grad_()
    found, expected = [], []
    for one, gradients in ((ours, found), (layer, expected)):
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            y = one(x)
        gradients += torch.autograd.grad(y, [x, one.weight], torch.ones_like(y))
    assert y.dtype == dtype
    for mine, wanted in zip(found, expected):
        assert mine.dtype == wanted.dtype == torch.float32
        assert candidate.error(mine, wanted) < (1e-5 if DEVICE == "cpu" else 0.02)
