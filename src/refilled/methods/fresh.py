"""Modules with fresh weights that follow from the training's seed alone, whatever was drawn before."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from refilled.data import Batches
from refilled.data.randomness import mixed_seed

_OF_LAYERS = 0x6C617965  # apart from the seeds of anything else
M = TypeVar("M", bound=nn.Module)


def fresh(train: Batches, make: Callable[[], M], number: int = 0) -> M:
    """What ``make`` builds, on the device of the training images.

    Args:
        train: its seed decides the weights.
        make: builds a module on the CPU; its weights are drawn from PyTorch's global generator.
        number: tells apart what one training builds more than once.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(mixed_seed(_OF_LAYERS, train.seed, number))
        return make().to(train.device)
