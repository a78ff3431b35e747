"""A tiny task for tests of training: six blobs of colour, and a network that learns them in no time."""

import torch

from refilled.data import Batch, Batches
from refilled.labels import LabelSpace
from refilled.methods import Stage
from refilled.models import Network, load

CLASSES = LabelSpace(["red", "green", "blue"])


def tiny_batches(images: int = 24, batch_size: int = 8, seed: int = 0, augment: str = "crop-flip") -> Batches:
    generator = torch.Generator().manual_seed(7)
    labels = torch.arange(images) % len(CLASSES)
    pixels = torch.randint(0, 90, (images, 3, 8, 8), generator=generator, dtype=torch.uint8)
    pixels[torch.arange(images), labels] += 150
    return Batches(pixels, labels, batch_size, augment, seed)


def tiny_network(seed: int = 0, spec: str = "wrn-10-1") -> Network:
    torch.manual_seed(seed)
    return load(spec, CLASSES, image_size=8)


def cross_entropy(network: Network, epochs: int = 3, name: str = "classifier") -> Stage:
    def loss(batch: Batch) -> dict[str, torch.Tensor]:
        return {"cross_entropy": torch.nn.functional.cross_entropy(network(batch.images)[1], batch.labels)}

    return Stage(name, epochs, list(network.parameters()), loss)


def same_weights(a: Network, b: Network) -> bool:
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
