"""A network prepares plain pixels itself."""

import pytest
import torch
from torch.nn import functional as F

from refilled.errors import UserError
from refilled.models import Preprocess, load
from refilled.models.network import IMAGENET_MEAN, IMAGENET_STD


def test_default_is_imagenets_for_colour():
    assert load("convnet-2", 2).preprocess == Preprocess(84, IMAGENET_MEAN, IMAGENET_STD)


def test_mean_and_std_are_applied_per_channel(images):
    network = load("convnet-2", 2, image_size=32, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    prepared = network.prepare(images)
    for channel, (mean, std) in enumerate([(0.1, 0.5), (0.2, 0.6), (0.3, 0.7)]):
        assert torch.allclose(prepared[:, channel], (images[:, channel] - mean) / std)


def test_images_are_brought_to_the_networks_side(images):
    network = load("convnet-2", 2, image_size=16, mean=(0, 0, 0), std=(1, 1, 1)).eval()
    smaller = F.interpolate(images, size=(16, 16), mode="bilinear", antialias=True, align_corners=False)
    assert torch.equal(network.prepare(images), smaller)
    with torch.no_grad():
        assert torch.allclose(network.embed(images), network.embed(smaller), atol=1e-6)


def test_grey_images_reach_every_channel_of_a_colour_network():
    network = load("convnet-2", 2, image_size=8, mean=(0, 0, 0), std=(1, 1, 1))
    grey = torch.rand(2, 1, 8, 8)
    assert torch.equal(network.prepare(grey), grey.repeat(1, 3, 1, 1))


def test_bytes_are_pixels_in_0_to_1():
    network = load("convnet-2", 2, image_size=8)
    raw = torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8)
    assert torch.equal(network.prepare(raw), network.prepare(raw.float() / 255))


def test_colour_images_do_not_enter_a_grey_network(images):
    with pytest.raises(ValueError, match="takes 1 channels, the images have 3"):
        load("convnet-2", 2, channels=1).embed(images)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"mean": (0.5,)}, "mean"),
        ({"std": (1, 1)}, "std"),
        ({"std": (1, 0, 1)}, "above 0"),
        ({"image_size": 0}, "image size"),
        ({"channels": 0}, "channel"),
    ],
)
def test_impossible_settings_are_refused(wrong, word):
    with pytest.raises(UserError, match=word):
        load("convnet-2", 2, **wrong)
