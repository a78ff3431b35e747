"""What several of our architectures share: initialisation, a loop over stages, care for small images."""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from refilled.models.convolution import Conv
from refilled.models.network import Preprocess

SMALL_IMAGE = 64
"""Up to this side in pixels the first layers of an ImageNet architecture keep the resolution."""


def is_small(preprocess: Preprocess) -> bool:
    """Whether the images are too small for ImageNet's strides."""
    return preprocess.size is not None and preprocess.size <= SMALL_IMAGE


def initialise(module: nn.Module, negative_slope: float = 0.0) -> None:
    """Set every layer's first weights.

    Convolutions: normal with the variance of He et al. (2015), counted over the outputs (fan out) of one
    group, zero bias. Batch normalisation: weight 1, bias 0. Linear layers keep PyTorch's own.

    Args:
        module: whose layers are set.
        negative_slope: of the leaky ReLUs that follow the convolutions; 0 for plain ReLUs.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            height, width = layer.kernel_size
            fan_out = layer.out_channels * height * width / layer.groups
            nn.init.normal_(layer.weight, std=math.sqrt(2 / ((1 + negative_slope**2) * fan_out)))
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.BatchNorm2d):
            nn.init.ones_(layer.weight)
            nn.init.zeros_(layer.bias)


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> Conv:
    """A 3x3 convolution that keeps the side (divided by the stride); no bias, normalisation follows."""
    return Conv(inputs, outputs, 3, stride=stride, padding=1, bias=False)


def conv1x1(inputs: int, outputs: int, stride: int = 1) -> Conv:
    """A 1x1 convolution; no bias, normalisation follows or went before."""
    return Conv(inputs, outputs, 1, stride=stride, bias=False)


class Halve(nn.Module):
    """Max-pool maps [B, C, H, W] to [B, C, H // 2, W // 2]; a map of one pixel's height or width stays.

    So a network made for 84-pixel images also takes digits of 8 x 8 pixels.
    """

    def forward(self, maps: Tensor) -> Tensor:
        """Maps of half the side."""
        return F.max_pool2d(maps, 2) if min(maps.shape[-2:]) > 1 else maps


def after_each(stages: nn.ModuleList, maps: Tensor) -> list[Tensor]:
    """Send maps [B, C, H, W] through the stages, one after the other; the output of each."""
    outputs = []
    for stage in stages:
        maps = stage(maps)
        outputs.append(maps)
    return outputs


def up_to_last(sequence: nn.Sequential, maps: Tensor) -> Tensor:
    """Maps [B, C, H, W] as the last layer of a sequence is given them."""
    *layers, _ = sequence
    for layer in layers:
        maps = layer(maps)
    return maps


def before_each(
    stages: nn.ModuleList,
    maps: Tensor,
    response: Callable[[Any, Tensor], Tensor],
    activation: Callable[[Tensor], Tensor],
) -> list[Tensor]:
    """Send maps [B, C, H, W] through the stages; what the activation at the end of each is given.

    Args:
        stages: one after the other.
        maps: of the first one.
        response: (stage, its input) -> its output before the activation.
        activation: from there to the input of the next stage.
    """
    responses = []
    for stage in stages:
        responses.append(response(stage, maps))
        maps = activation(responses[-1])
    return responses
