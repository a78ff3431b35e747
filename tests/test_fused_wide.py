"""A benchmark's candidate. It needs Triton, and a GPU or its interpreter (TRITON_INTERPRET=1)."""

import copy
import os
from pathlib import Path

import pytest
import torch

from refilled.labels import LabelSpace
from refilled.models import convolution, load

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.skipif(
    convolution.kernels is None or (DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1"),
    reason="needs Triton, and a CUDA device or TRITON_INTERPRET=1",
)


@pytest.fixture
def fused_maps(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import fused_wide

    return fused_wide.fused_maps


def make_network(spec):
    """One with normalisations that do something, and statistics that were moved before."""
    network = load(spec, LabelSpace("abc"), image_size=8).to(DEVICE, memory_format=torch.channels_last)
    for name, value in [*network.named_parameters(), *network.named_buffers()]:
        if value.dim() == 1 and value.is_floating_point():
            torch.nn.init.uniform_(value, *((-0.5, 0.5) if "bias" in name or "mean" in name else (0.5, 1.5)))
    return network.train()


def error(found, expected):
    """The largest difference, as a part of the largest value."""
    found, expected = found.detach().float(), expected.detach().float()
    return float((found - expected).abs().max() / expected.abs().max())


def results(network, maps, images, gradients):
    """Maps, gradients of all weights, and statistics, by name."""
    found = maps(network, images)
    sum((one * gradient).sum() for one, gradient in zip(found, gradients)).backward()
    named = {
        name: parameter.grad for name, parameter in network.named_parameters() if parameter.grad is not None
    }
    return {f"maps {number}": one for number, one in enumerate(found)} | named | dict(network.named_buffers())


@pytest.mark.parametrize(("spec", "height", "width"), [("wrn-16-1", 8, 8), ("wrn-10-2", 9, 7)])
def test_it_is_the_same_network(fused_maps, spec, height, width):
    """Identities and projections, with and without strides, odd sides; every map has its own gradient."""
    torch.manual_seed(0)
    network = make_network(spec)
    other = copy.deepcopy(network)
    images = torch.randn(3, 3, height, width, device=DEVICE)
    gradients = [torch.randn_like(maps) for maps in copy.deepcopy(network).feature_maps(images)]
    expected = results(network, type(network).feature_maps, images, gradients)
    found = results(other, fused_maps, images, gradients)
    assert found.keys() == expected.keys()
    near = 1e-4 if DEVICE == "cpu" else 0.02  # a GPU rounds to tf32
    for name, wanted in expected.items():
        assert error(found[name], wanted) < near, name
    assert int(other.norm.num_batches_tracked) == int(other.groups[0][0].norm1.num_batches_tracked) == 1


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
def test_compiled_in_half_precision_it_is_near(fused_maps):
    torch._dynamo.reset()
    torch.manual_seed(0)
    network = make_network("wrn-16-2")
    other = copy.deepcopy(network)
    images = torch.randn(64, 3, 32, 32, device=DEVICE).contiguous(memory_format=torch.channels_last)
    shapes = [maps.shape for maps in copy.deepcopy(network).feature_maps(images)]
    gradients = [torch.randn(shape, device=DEVICE) for shape in shapes]
    expected = results(network, type(network).feature_maps, images, gradients)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        found = results(other, torch.compile(fused_maps, fullgraph=True), images, gradients)
    for name, wanted in expected.items():
        wanted = wanted.detach().float()
        assert float((found[name].detach().float() - wanted).norm() / wanted.norm()) < 0.1, name
