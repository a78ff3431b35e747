import pytest
import torch
from torch import nn

from refilled.methods.at import Attentions
from refilled.models import load
from refilled.models.folded import Folded

CLASSES = ["ant", "bee", "cat"]


def lively(spec: str, size: int = 32):
    """A network in evaluation mode whose batch norms do something."""
    torch.manual_seed(0)
    network = load(spec, CLASSES, image_size=size)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 2.0)
            nn.init.uniform_(layer.bias, -0.5, 0.5)
            nn.init.uniform_(layer.running_mean, -0.5, 0.5)
            nn.init.uniform_(layer.running_var, 0.5, 2.0)
    return network.eval().requires_grad_(False)


@pytest.mark.parametrize(
    ("spec", "folded"), [("wrn-10-1", 3), ("resnet-8", 7), ("mobilenet-0.25", 27), ("convnet-4", 4)]
)
def test_a_folded_network_embeds_the_same(spec, folded):
    network = lively(spec)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    fast = Folded(network)
    assert fast.folded == folded
    images = torch.rand(5, 3, 32, 32)
    wanted = network.embed(images)
    assert torch.allclose(fast.answer(images), wanted, atol=1e-5 * float(wanted.abs().max()))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_half_precision_and_autocast():
    network = lively("wrn-10-1")
    images = torch.rand(4, 3, 32, 32)
    fast = Folded(network, torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = fast.answer(images)
    assert z.dtype == torch.bfloat16
    assert torch.allclose(z.float(), network.embed(images), rtol=0.05, atol=0.05)


def test_a_norm_that_is_used_twice_is_left_alone():
    network = lively("convnet-2")
    network.norm_again = nn.BatchNorm2d(64).eval()
    nn.init.uniform_(network.norm_again.running_mean, -0.5, 0.5)

    class Twice(type(network)):
        def feature_maps(self, prepared):
            maps = super().feature_maps(prepared)
            return [self.norm_again(self.norm_again(maps[-1]))]

    network.__class__ = Twice
    images = torch.rand(3, 3, 32, 32)
    assert torch.allclose(Folded(network).answer(images), network.embed(images), atol=1e-5)


def test_what_cannot_be_traced_is_run_as_it_is():
    network = lively("convnet-2")

    class Branching(type(network)):
        def embed_prepared(self, prepared):
            z = super().embed_prepared(prepared)
            return z if z.sum() > 0 else -z

    network.__class__ = Branching
    fast = Folded(network)
    images = torch.rand(3, 3, 32, 32)
    assert fast.folded == 0
    assert torch.allclose(fast.answer(images), network.embed(images), atol=1e-6)
    assert not fast.answer(images).requires_grad


def test_a_compiled_one_embeds_the_same_and_what_cannot_be_compiled_stays(monkeypatch):
    network, images = lively("convnet-2"), torch.rand(3, 3, 32, 32)
    fast, calls = Folded(network), []
    monkeypatch.setattr(torch, "compile", lambda body: lambda x: calls.append(1) or body(x))
    assert fast.compile_for(images)
    assert torch.allclose(fast.answer(images), network.embed(images), atol=1e-5)
    assert len(calls) == 2

    def broken(body):
        def fails(x):
            raise RuntimeError("no compiler")

        return fails

    monkeypatch.setattr(torch, "compile", broken)
    plain = Folded(network)
    assert not plain.compile_for(images)
    assert torch.allclose(plain.answer(images), network.embed(images), atol=1e-5)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_attentions_are_traced_and_folded_too(dtype):
    network = load("wrn-16-1", ["a", "b"]).eval().requires_grad_(False)
    images, wanted = torch.rand(3, 3, 16, 16), Attentions(((8, 8), (4, 4)))
    fast = Folded(network, dtype, wanted)
    assert fast.folded == Folded(network, dtype).folded > 0
    found, own = fast.answer(images), wanted(network, network.prepare(images))
    assert found.dtype == (dtype or torch.float32)
    assert torch.allclose(found.float(), own, atol=1e-5 if dtype is None else 2e-2)
