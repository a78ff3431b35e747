"""Our kernels need Triton, and a GPU or its interpreter (TRITON_INTERPRET=1)."""

import copy
import os

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from refilled.labels import LabelSpace
from refilled.models import convolution, convolution_calls, load, wide_fits
from refilled.models.wide_fits import fused_type, fused_type_together, would_be_fused
from refilled.models.wide_fused import fused_maps

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
with_kernels = pytest.mark.skipif(
    convolution.kernels is None or (DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1"),
    reason="needs Triton, and a CUDA device or TRITON_INTERPRET=1",
)


def make_network(spec):
    """One with normalisations that do something, statistics that were moved before, and one layer whose move
    faster."""
    network = load(spec, LabelSpace("abc"), image_size=8).to(DEVICE, memory_format=torch.channels_last)
    for name, value in [*network.named_parameters(), *network.named_buffers()]:
        if value.dim() == 1 and value.is_floating_point():
            torch.nn.init.uniform_(value, *((-0.5, 0.5) if "bias" in name or "mean" in name else (0.5, 1.5)))
    network.norm.momentum = 0.3
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
    return named(network, found)


def named(network, maps):
    """Maps, gradients of all weights that have some, and statistics, by name."""
    by_name = {name: weight.grad for name, weight in network.named_parameters() if weight.grad is not None}
    return (
        {f"maps {number}": one for number, one in enumerate(maps)} | by_name | dict(network.named_buffers())
    )


def alone(network, images):
    """Maps by our kernels."""
    return fused_maps([network], images, torch.float32)


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
    found = results(other, alone, images, gradients)
    assert_as_near(found, library, exact, 1e-4 if DEVICE == "cpu" else 1e-3)
    assert int(other.norm.num_batches_tracked) == int(other.groups[0][0].norm1.num_batches_tracked) == 1


@pytest.fixture
def ours_everywhere(monkeypatch):
    """The gradients of all weights by our kernel, which the library would give to only one network."""
    usual = convolution_calls.weight_plan
    monkeypatch.setattr(convolution_calls, "weight_plan", lambda *layer: usual(*layer[:3], networks=2))


def make_several(spec, height, width):
    """Three networks, images of all, and gradients of their maps."""
    networks = [make_network(spec) for _ in range(3)]
    images = torch.randn(9, 3, height, width, device=DEVICE)
    with torch.no_grad():
        gradients = [torch.randn_like(maps) for maps in copy.deepcopy(networks[0]).feature_maps(images)]
    return networks, images, gradients


@with_kernels
@pytest.mark.parametrize(("spec", "height", "width"), [("wrn-16-1", 8, 8), ("wrn-10-2", 9, 7)])
def test_several_networks_get_what_each_gets_alone(spec, height, width, ours_everywhere):
    torch.manual_seed(0)
    networks, images, gradients = make_several(spec, height, width)
    others = [copy.deepcopy(network) for network in networks]
    together = fused_maps(networks, images, torch.float32)
    sum((maps * gradient).sum() for maps, gradient in zip(together, gradients)).backward()
    assert all(maps.is_contiguous(memory_format=torch.channels_last) for maps in together)
    for number, (network, other) in enumerate(zip(networks, others)):
        own = slice(3 * number, 3 * number + 3)
        expected = results(other, alone, images[own], [one[own] for one in gradients])
        found = named(network, [maps[own] for maps in together])
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(found[name], value), name


@with_kernels
def test_a_networks_gradients_are_its_own():
    torch.manual_seed(0)
    networks, images, gradients = make_several("wrn-10-2", 4, 4)
    together = fused_maps(networks, images, torch.float32)
    sum((maps[3:6] * gradient[3:6]).sum() for maps, gradient in zip(together, gradients)).backward()
    for number, network in enumerate(networks):
        given = [weight.grad for weight in network.parameters() if weight.grad is not None]
        assert len(given) == len(list(network.parameters())) - 2  # the head's
        assert all(bool(gradient.any()) == (number == 1) for gradient in given)
        assert int(network.norm.num_batches_tracked) == 1


@pytest.fixture
def taken(monkeypatch):
    """As if it were known to be faster."""
    monkeypatch.setattr(wide_fits, "SHOWN_FASTER", True)


@pytest.fixture
def known(taken, monkeypatch):
    """As if compiling for a GPU that was measured."""
    monkeypatch.setattr(wide_fits, "own_type", lambda images: torch.bfloat16)


def test_it_is_for_compiled_networks_in_training(known, monkeypatch):
    network, images = make_network("wrn-10-1"), torch.zeros(2, 3, 8, 8)
    assert fused_type(network, images) == torch.bfloat16
    assert fused_type(network, images.clone().requires_grad_()) is None
    assert fused_type(network.eval(), images) is None
    network.train()
    monkeypatch.setattr(wide_fits, "own_type", lambda images: None)
    assert fused_type(network, images) is None


def test_it_is_not_taken_before_it_is_known_to_be_faster(known, monkeypatch):
    monkeypatch.setattr(wide_fits, "SHOWN_FASTER", False)
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


def test_several_networks_have_one_architecture(known):
    images = torch.zeros(6, 3, 8, 8)
    one, other, sleeping, deeper, wider, finer, slower = (
        make_network(spec) for spec in ("wrn-10-1",) * 3 + ("wrn-16-1", "wrn-10-2") + ("wrn-10-1",) * 2
    )
    sleeping.eval()
    finer.norm.eps = 1e-3
    slower.norm.momentum = 0.01
    assert fused_type_together([one], images) == torch.bfloat16
    assert fused_type_together([one, other], images) == torch.bfloat16
    for odd in (sleeping, deeper, wider, finer, slower):
        assert fused_type_together([one, odd, other], images) is None
        assert fused_type_together([odd, one], images) is None


def test_what_would_be_fused_is_known_before(taken, monkeypatch):
    """Of a network on a GPU, in training or not."""
    monkeypatch.setattr(convolution, "_is_known", lambda device: True)
    usual, widest = make_network("wrn-10-1"), make_network("wrn-10-3")
    for network in (usual, widest):
        with FakeTensorMode(allow_non_fake_inputs=True):
            network.stem.weight = nn.Parameter(torch.empty(network.stem.weight.shape, device="cuda"))
    half = torch.bfloat16
    assert would_be_fused(usual, half)
    assert would_be_fused(usual.eval(), half)
    assert not would_be_fused(usual, None)
    assert not would_be_fused(widest, half)
    assert not would_be_fused(make_network("wrn-10-1").cpu(), half)
    monkeypatch.setattr(wide_fits, "SHOWN_FASTER", False)
    assert not would_be_fused(usual, half)


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
