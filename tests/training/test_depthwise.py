"""Kernels of convolutions per channel: the same as torch's.

They need Triton, and a GPU or its interpreter (TRITON_INTERPRET=1, on a CPU).
"""

import copy
import os

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from refilled.models import load
from refilled.training import depthwise
from refilled.training.depthwise import Depthwise, available, quick_depthwise

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a CUDA device or TRITON_INTERPRET=1", allow_module_level=True)
pytest.importorskip("triton", reason="needs Triton")
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # the interpreter cuts the former, not rounds


@pytest.fixture(autouse=True)
def exact_products():
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def inputs(images, channels, height, width):
    generator = torch.Generator().manual_seed(channels + 10 * height + width)
    x = torch.randn(images, channels, height, width, generator=generator)
    weight = torch.randn(channels, 1, 3, 3, generator=generator)
    x = x.to(DEVICE, memory_format=torch.channels_last).requires_grad_()
    return x, weight.to(DEVICE).requires_grad_()


def reference(x, weight, stride):
    return F.conv2d(x, weight, stride=stride, padding=1, groups=len(weight))


def upstream_of(maps):
    generator = torch.Generator().manual_seed(7)
    return torch.randn(maps.shape, generator=generator).to(maps.device, maps.dtype)


def check(x, weight, stride):
    found, expected = Depthwise.apply(x, weight, stride), reference(x, weight, stride)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert found.is_contiguous(memory_format=torch.channels_last)
    upstream = upstream_of(expected)
    gradients = torch.autograd.grad(found, (x, weight), upstream)
    for each, wanted in zip(gradients, torch.autograd.grad(expected, (x, weight), upstream)):
        torch.testing.assert_close(each, wanted, atol=1e-4, rtol=1e-4)
    return gradients


def depthwise_conv(channels=8, stride=1, **others):
    settings = {"padding": 1, "groups": channels, "bias": False, **others}
    return nn.Conv2d(channels, channels, 3, stride=stride, **settings).to(DEVICE)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    ("images", "channels", "height", "width"),
    [
        (1, 8, 4, 4),
        (3, 8, 5, 5),
        (3, 8, 1, 1),
        (2, 8, 1, 6),
        (2, 8, 7, 1),
        (3, 8, 9, 14),  # a few tiles, which begin within rows
        (3, 24, 5, 6),
        (1, 24, 2, 3),
        (3, 64, 4, 7),
        (1, 64, 11, 3),
        (2, 72, 3, 4),  # a block and a bit
        (2, 96, 2, 5),  # three smaller blocks
        (1, 128, 5, 2),
    ],
)
def test_maps_and_gradients(stride, images, channels, height, width):
    check(*inputs(images, channels, height, width), stride)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("tile", [64, 256])
def test_many_chunks(monkeypatch, stride, tile):
    for name in ("TILE", "TILE_BACK"):
        monkeypatch.setattr(depthwise, name, tile)
        monkeypatch.setattr(depthwise, name.replace("TILE", "LEAST_TILES"), 1 if tile == 256 else 2)
    x, weight = inputs(3, 24, 4, 5)
    first = check(x, weight, stride)
    for each, again in zip(first, check(x, weight, stride)):
        assert torch.equal(each, again)


@pytest.mark.parametrize("stride", [1, 2])
def test_few_programs_walk_through_many_tiles(monkeypatch, stride):
    monkeypatch.setattr(depthwise, "TILE", 64)
    monkeypatch.setattr(depthwise, "TILE_BACK", 128)
    monkeypatch.setattr(depthwise, "PROGRAMS", 3)
    monkeypatch.setattr(depthwise, "PROGRAMS_BACK", 2)
    check(*inputs(4, 16, 3, 5), stride)  # tiles of several rows, or more than an image with a stride of 2
    check(*inputs(9, 16, 1, 1), stride)


@pytest.mark.parametrize("stride", [1, 2])
def test_one_gradient_alone(stride):
    x, weight = inputs(2, 8, 5, 4)
    upstream = upstream_of(reference(x, weight, stride))
    for given in ((x.detach(), weight), (x, weight.detach())):
        (wanted,) = [each for each in given if each.requires_grad]
        (found,) = torch.autograd.grad(Depthwise.apply(*given, stride), wanted, upstream)
        (expected,) = torch.autograd.grad(reference(*given, stride), wanted, upstream)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_other_memory_formats():
    x, weight = inputs(2, 8, 5, 4)
    plain = x.detach().contiguous().requires_grad_()
    check(plain, weight, 1)
    check(x.detach()[:, :, 1:, ::2].requires_grad_(), weight, 2)
    given = (plain, weight)  # and an upstream without memory of its own
    gradients = torch.autograd.grad(Depthwise.apply(*given, 1).sum(), given)
    for each, wanted in zip(gradients, torch.autograd.grad(reference(*given, 1).sum(), given)):
        torch.testing.assert_close(each, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("stride", [1, 2])
def test_half_precision_is_near(stride):
    x, weight = inputs(2, 16, 6, 6)
    expected = reference(x, weight, stride)
    upstream = upstream_of(expected)
    found = Depthwise.apply(x.to(HALF), weight.to(HALF), stride)
    assert found.dtype == HALF
    assert (found.float() - expected).abs().mean() < 0.01 * expected.abs().mean()
    gradients = torch.autograd.grad(found, (x, weight), upstream.to(HALF))
    for each, wanted in zip(gradients, torch.autograd.grad(expected, (x, weight), upstream)):
        assert each.dtype == torch.float32
        assert (each - wanted).abs().mean() < 0.01 * wanted.abs().mean()


@pytest.mark.parametrize("stride", [1, 2])
def test_autocast(stride):
    conv, x = depthwise_conv(16, stride), inputs(2, 16, 6, 5)[0]
    with torch.autocast(DEVICE, HALF):
        expected = conv(x)
        with quick_depthwise(conv):
            found = conv(x)
    assert found.dtype == expected.dtype == HALF
    assert "Depthwise" in type(found.grad_fn).__name__
    torch.testing.assert_close(found, expected, atol=0.01, rtol=0.01)
    upstream = upstream_of(expected)
    given = (x, conv.weight)
    gradients = torch.autograd.grad(found, given, upstream)
    for each, wanted in zip(gradients, torch.autograd.grad(expected, given, upstream)):
        assert each.dtype == torch.float32
        assert (each - wanted).abs().mean() < 0.01 * wanted.abs().mean()


def swapped(network):
    return [name for name, module in network.named_modules() if "forward" in module.__dict__]


def various():
    return nn.ModuleDict(
        {
            "plain": depthwise_conv(),
            "strided": depthwise_conv(16, 2),
            "bias": depthwise_conv(bias=True),
            "dilated": depthwise_conv(dilation=2),
            "unpadded": depthwise_conv(padding=0),
            "same": depthwise_conv(padding="same"),
            "mirrored": depthwise_conv(padding_mode="reflect"),
            "uneven": depthwise_conv(stride=(1, 2)),
            "third": depthwise_conv(stride=3),
            "narrow": depthwise_conv(4),
            "pairs": depthwise_conv(groups=4),
            "full": depthwise_conv(groups=1),
            "doubling": nn.Conv2d(8, 16, 3, padding=1, groups=8, bias=False),
            "larger": nn.Conv2d(8, 8, 5, padding=2, groups=8, bias=False),
            "flat": nn.Conv1d(8, 8, 3, padding=1, groups=8, bias=False),
        }
    ).to(DEVICE)


def test_swaps_what_it_can_and_restores_it():
    network = various()
    before = copy.deepcopy(network.state_dict())
    modules = list(network.modules())
    assert available()
    with quick_depthwise(network):
        assert swapped(network) == ["plain", "strided"]
        assert list(network.state_dict()) == list(before)
        with quick_depthwise(network):
            pass
        assert swapped(network) == ["plain", "strided"]  # the inner one did not undo the outer one
        with torch.no_grad():
            maps = network["plain"](torch.rand(1, 8, 3, 3, device=DEVICE))
    assert maps.shape == (1, 8, 3, 3)
    assert swapped(network) == []
    assert list(network.modules()) == modules
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])


def test_restores_after_an_exception():
    network = various()
    with pytest.raises(ZeroDivisionError), quick_depthwise(network):
        raise ZeroDivisionError
    assert swapped(network) == []


def test_without_kernels_nothing_is_swapped(monkeypatch):
    monkeypatch.setattr(depthwise, "find_spec", lambda name: None)
    network = various()
    assert not available()
    with quick_depthwise(network):
        assert swapped(network) == []


def test_other_maps_go_through_the_library(monkeypatch):
    conv, x = depthwise_conv(), torch.rand(2, 8, 4, 5, device=DEVICE)
    with quick_depthwise(conv):
        assert "Depthwise" in type(conv(x).grad_fn).__name__
        assert "Depthwise" not in type(conv(x[0]).grad_fn).__name__
        assert conv(x[:0]).shape == (0, 8, 4, 5)
        with pytest.raises(RuntimeError):
            conv(x[:, :4])
        with pytest.raises(RuntimeError):
            conv(x.double())
        double = copy.deepcopy(conv).double()
        assert double(x.double()).dtype == torch.float64
    if DEVICE == "cpu":
        with quick_depthwise(conv):
            monkeypatch.delenv("TRITON_INTERPRET")
            assert "Depthwise" not in type(conv(x).grad_fn).__name__


def test_a_network_stays_the_same():
    torch.manual_seed(0)
    network = load("mobilenet-0.25", 5, image_size=16).to(DEVICE, memory_format=torch.channels_last)
    network.train()
    images = torch.rand(4, 3, 16, 16, device=DEVICE)

    def outputs(module):
        embedding = module.embed(images)
        logits = module.head(embedding)
        (embedding.square().mean() + F.cross_entropy(logits, torch.arange(4, device=DEVICE))).backward()
        return embedding, logits, [parameter.grad for parameter in module.parameters()]

    other = copy.deepcopy(network)
    expected = outputs(other)
    with quick_depthwise(network):
        assert len(swapped(network)) == 13
        found = outputs(network)
    for each, wanted in zip((*found[:2], *found[2]), (*expected[:2], *expected[2])):
        torch.testing.assert_close(each, wanted, atol=1e-4 + 1e-3 * wanted.abs().max().item(), rtol=1e-3)
