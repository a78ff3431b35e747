"""MobileNet (Howard et al., 2017, https://arxiv.org/abs/1704.04861), the first version."""

from torch import Tensor, nn

from refilled.errors import UserError
from refilled.labels import LabelSpace
from refilled.models.layers import after_each, before_each, conv3x3, initialise, is_small, up_to_last
from refilled.models.network import Network, Preprocess

# Table 1 of the paper, one line per resolution: channels of its blocks, each of which has a stride of 1 but
# for the first one of a line.
RESOLUTIONS = ((64,), (128, 128), (256, 256), (512,) * 6, (1024, 1024))


def scaled(channels: int, width: float) -> int:
    """``channels * width``, rounded to the nearest multiple of 8, at least 8.

    The paper's multipliers (0.25, 0.5, 0.75, 1) give such multiples anyway.
    """
    return max(8, 8 * round(channels * width / 8))


def separable(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """A 3x3 convolution per channel, then a 1x1 convolution over the channels; both normalised."""
    return nn.Sequential(
        nn.Conv2d(inputs, inputs, 3, stride=stride, padding=1, groups=inputs, bias=False),
        nn.BatchNorm2d(inputs),
        nn.ReLU(),
        nn.Conv2d(inputs, outputs, 1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


class MobileNet(Network):
    """MobileNet with a width multiplier.

    Images of more than 64 pixels meet the paper's strides, 32 in all. For smaller ones the stem and the
    first of the strided blocks keep the resolution, 8 in all: 32 pixels end as a map of 4 x 4.

    Feature maps are those at the end of each of the five resolutions of the paper (the first two have the
    same side when the images are small).

    Args:
        width: multiple of the channels, above 0; see :func:`scaled`.
        classes: names of the classes.
        preprocess: how the pixels are prepared; its size decides about the strides.
    """

    def __init__(self, width: float, classes: LabelSpace, preprocess: Preprocess):
        if not 0 < width < float("inf"):
            raise UserError(f"mobilenet-{width:g}: the width of a MobileNet is above 0, e.g. 0.25, 0.5 or 1")
        digits = f"{width:.10f}".rstrip("0").rstrip(".")
        super().__init__(f"mobilenet-{digits}", scaled(RESOLUTIONS[-1][-1], width), classes, preprocess)
        small = is_small(preprocess)
        inputs = scaled(32, width)
        self.stem = nn.Sequential(
            conv3x3(preprocess.channels, inputs, stride=1 if small else 2), nn.BatchNorm2d(inputs), nn.ReLU()
        )
        first_strided = 2 if small else 1
        stages = []
        for level, blocks in enumerate(RESOLUTIONS):
            stage = []
            for position, channels in enumerate(blocks):
                outputs = scaled(channels, width)
                stage.append(separable(inputs, outputs, 2 if position == 0 and level >= first_strided else 1))
                inputs = outputs
            stages.append(nn.Sequential(*stage))
        self.stages = nn.ModuleList(stages)
        self.head = nn.Linear(self.dim, len(classes))
        initialise(self)

    def feature_maps(self, prepared: Tensor) -> list[Tensor]:
        """One map [B, C, H, W] per resolution, with 64, 128, 256, 512 and 1024 times ``width`` channels."""
        return after_each(self.stages, self.stem(prepared))

    def responses(self, prepared: Tensor) -> list[Tensor]:
        """The same before the last ReLU of each resolution."""
        return before_each(
            self.stages,
            self.stem(prepared),
            lambda stage, maps: up_to_last(stage[-1], up_to_last(stage, maps)),
            self.activation,
        )
