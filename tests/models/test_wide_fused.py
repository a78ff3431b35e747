"""Our kernels need Triton, and a GPU or its interpreter (TRITON_INTERPRET=1)."""

import copy
import os

import pytest
import torch
from torch import nn

from refilled.labels import LabelSpace
from refilled.models import convolution, load, wide_fused
from refilled.models.wide_fused import fused_maps, fused_type

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
with_kernels = pytest.mark.skipif(
    convolution.kernels is None or (DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1"),
    reason="needs Triton, and a CUDA device or TRITON_INTERPRET=1",
)


def make_network(spec):
    """One with normalisations that do something, and statistics that were moved before."""
    network = load(spec, LabelSpace("abc"), image_size=8).to(DEVICE, memory_format=torch.channels_last)
    for name, value in [*network.named_parameters(), *network.named_buffers()]:
        if value.dim() == 1 and value.is_floating_point():
            torch.nn.init.uniform_(value, *((-0.5, 0.5) if "bias" in name or "mean" in name else (0.5, 1.5)))
    return network.train()


def errors(found, exact):
    """By name, the largest difference as a part of the largest value."""
    exact = {name: value.detach().double() for name, value in exact.items()}
    return {
        name: float((found[name].detach() - value).abs().max() / value.abs().max())
        for name, value in exact.items()
    }


def assert_as_near(found, library, exact, near):
    """As near to exact results as the library comes in the same precision.

    Rounding lets values through a ReLU that others stop, so that no bound is good for all.
    """
    ours, theirs = errors(found, exact), errors(library, exact)
    assert ours.keys() == found.keys()
    for name, far in ours.items():
        assert far < near + 3 * theirs[name], name
    assert sum(ours.values()) < len(ours) * near + 1.3 * sum(theirs.values())


def results(network, maps, images, gradients):
    """Maps, gradients of all weights, and statistics, by name."""
    found = maps(network, images)
    sum((one * gradient).sum() for one, gradient in zip(found, gradients)).backward()
    named = {
        name: parameter.grad for name, parameter in network.named_parameters() if parameter.grad is not None
    }
    return {f"maps {number}": one for number, one in enumerate(found)} | named | dict(network.named_buffers())


@pytest.fixture
def exactly(monkeypatch):
    """No tf32: with so few pixels its rounding changes gradients by a tenth."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    if DEVICE != "cpu":
        from triton import knobs

        monkeypatch.setattr(knobs.language, "fp32_default", "tf32x3")
        monkeypatch.setattr(knobs.compilation, "always_compile", True)


@with_kernels
@pytest.mark.parametrize(("spec", "height", "width"), [("wrn-16-1", 8, 8), ("wrn-10-2", 9, 7)])
def test_it_is_the_same_network(spec, height, width, exactly):
    """Identities and projections, with and without strides, odd sides; every map has its own gradient."""
    torch.manual_seed(0)
    network = make_network(spec)
    other, doubled = copy.deepcopy(network), copy.deepcopy(network).double()
    images = torch.randn(3, 3, height, width, device=DEVICE)
    gradients = [torch.randn_like(maps) for maps in copy.deepcopy(network).feature_maps(images)]
    usual = type(network).feature_maps
    exact = results(doubled, usual, images.double(), gradients)
    library = results(network, usual, images, gradients)
    found = results(other, lambda *given: fused_maps(*given, torch.float32), images, gradients)
    assert_as_near(found, library, exact, 1e-4 if DEVICE == "cpu" else 1e-3)
    assert int(other.norm.num_batches_tracked) == int(other.groups[0][0].norm1.num_batches_tracked) == 1


@pytest.fixture
def taken(monkeypatch):
    """As if it were known to be faster."""
    monkeypatch.setattr(wide_fused, "SHOWN_FASTER", True)


@pytest.fixture
def known(taken, monkeypatch):
    """As if compiling for a GPU that was measured."""
    monkeypatch.setattr(wide_fused, "own_type", lambda images: torch.bfloat16)


def test_it_is_for_compiled_networks_in_training(known, monkeypatch):
    network, images = make_network("wrn-10-1"), torch.zeros(2, 3, 8, 8)
    assert fused_type(network, images) == torch.bfloat16
    assert fused_type(network, images.clone().requires_grad_()) is None
    assert fused_type(network.eval(), images) is None
    network.train()
    monkeypatch.setattr(wide_fused, "own_type", lambda images: None)
    assert fused_type(network, images) is None


def test_it_is_not_taken_before_it_is_known_to_be_faster(known, monkeypatch):
    monkeypatch.setattr(wide_fused, "SHOWN_FASTER", False)
    assert fused_type(make_network("wrn-10-1"), torch.zeros(2, 3, 8, 8)) is None


def test_it_is_for_usual_layers(known):
    images = torch.zeros(2, 3, 8, 8)
    dropped, frozen, widest = make_network("wrn-10-1"), make_network("wrn-10-1"), make_network("wrn-10-3")
    dropped.dropout = 0.1
    frozen.groups[1][0].norm2.eval()
    assert [fused_type(one, images) for one in (dropped, frozen, widest)] == [None] * 3
    synchronised = nn.SyncBatchNorm.convert_sync_batchnorm(make_network("wrn-10-1"))
    assert fused_type(synchronised, images) is None
    averaging = make_network("wrn-10-1")
    averaging.norm.momentum = None
    assert fused_type(averaging, images) is None


@pytest.mark.skipif(
    DEVICE == "cpu" or torch.cuda.get_device_capability() != (9, 0), reason="needs a GPU of capability 9.0"
)
def test_compiled_in_half_precision_it_is_near(taken):
    torch._dynamo.reset()
    torch.manual_seed(0)
    network = make_network("wrn-16-2")
    other, doubled = copy.deepcopy(network), copy.deepcopy(network).double()
    images = torch.randn(64, 3, 32, 32, device=DEVICE).contiguous(memory_format=torch.channels_last)
    shapes = [maps.shape for maps in copy.deepcopy(network).feature_maps(images)]
    gradients = [torch.randn(shape, device=DEVICE) for shape in shapes]
    usual = type(network).feature_maps
    exact = results(doubled, usual, images.double(), gradients)
    compiled = torch.compile(usual, fullgraph=True)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        library = results(network, usual, images, gradients)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            found = results(other, compiled, images, gradients)
            torch.cuda.synchronize()
    assert any(event.key.startswith("finish") for event in seen.key_averages())
    assert_as_near(found, library, exact, 0.01)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):  # any number of images
        sizes = [compiled(other, images[:size])[-1].shape[0] for size in (32, 24, 40)]
    assert sizes == [32, 24, 40]
