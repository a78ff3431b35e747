"""A network's outputs over a whole set: complete, in order, and without a trace on the network."""

import pytest
import torch

from refilled.data import Batches
from refilled.evaluation import predict
from refilled.models import load


@pytest.fixture
def network():
    torch.manual_seed(0)
    return load("wrn-10-1", ["ant", "bee", "cat"], image_size=8)


@pytest.fixture
def batches():
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (21, 3, 8, 8), generator=generator, dtype=torch.uint8)
    return Batches(images, torch.randint(0, 3, (21,), generator=generator), batch_size=4, augment="crop-flip")


@pytest.mark.parametrize("training", [True, False])
def test_mode_is_restored_and_nothing_changes(network, batches, training):
    network.train(training)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    predict(network, batches)
    assert all(module.training == training for module in network.modules())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())


def test_mode_is_restored_after_an_error(network, batches):
    batches.source.images = batches.source.images[:, :2]  # two channels, which the network refuses
    network.train()
    with pytest.raises(ValueError, match="channels"):
        predict(network, batches)
    assert all(module.training for module in network.modules())


def test_outputs_are_those_of_the_images_as_they_are_in_order(network, batches):
    outputs = predict(network, batches)
    network.eval()
    with torch.no_grad():
        z, logits = network(batches.source.images.float() / 255)
    torch.testing.assert_close(outputs.embeddings, z)
    torch.testing.assert_close(outputs.logits, logits)
    assert torch.equal(outputs.labels, batches.labels)
    assert not outputs.logits.requires_grad
    assert not outputs.embeddings.requires_grad


@pytest.mark.parametrize("batch_size", [1, 4, 20, 21, 22])
def test_batch_size_changes_nothing(network, batches, batch_size):
    """In evaluation mode each image stands for itself."""
    one, other = predict(network, batches), predict(network, batches, batch_size=batch_size)
    assert one.embeddings.shape == other.embeddings.shape == (21, 64)
    torch.testing.assert_close(one.embeddings, other.embeddings)
    torch.testing.assert_close(one.logits, other.logits)


def test_autocast_gives_float32_near_to_the_exact(network, batches):
    exact = predict(network, batches)
    cast = predict(network, batches, autocast_dtype=torch.bfloat16)
    assert cast.embeddings.dtype == cast.logits.dtype == torch.float32
    assert not torch.equal(cast.logits, exact.logits)
    torch.testing.assert_close(cast.logits, exact.logits, rtol=0.1, atol=0.1)
