"""A small world of few-shot tasks: noise in colours that tell the classes apart."""

import torch

from refilled.fewshot import Pool
from refilled.labels import LabelSpace
from refilled.models import Network, load


def make_pool(classes: int = 7, each: int = 12, side: int = 16, seed: int = 0) -> Pool:
    """Images [classes * each, 3, side, side]; a class has a colour of its own."""
    generator = torch.Generator().manual_seed(seed)
    colours = torch.randint(60, 196, (classes, 3, 1, 1), generator=generator)
    labels = torch.arange(classes).repeat(each)
    noise = torch.randint(-60, 60, (len(labels), 3, side, side), generator=generator)
    names = LabelSpace(f"class-{label}" for label in range(classes))
    return Pool((colours[labels] + noise).to(torch.uint8), labels, names)


def small_network(spec: str = "convnet-2", classes: int = 9, seed: int = 0) -> Network:
    """With fresh weights, for images of 16 pixels."""
    torch.manual_seed(seed)
    return load(spec, classes, image_size=16)
