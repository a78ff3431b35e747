"""Residual networks of basic blocks (He et al., 2016, https://arxiv.org/abs/1512.03385).

Two families: those of the paper's section 4.2, for images of 32 pixels (depth 6n + 2), and ResNet-18 and
ResNet-34 of its table 1, for ImageNet.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from refilled.errors import UserError
from refilled.labels import LabelSpace
from refilled.models.layers import after_each, before_each, conv1x1, conv3x3, initialise, is_small, up_to_last
from refilled.models.network import Network, Preprocess

IMAGENET_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}


class PaddedShortcut(nn.Module):
    """Option A of the paper: every ``stride``-th pixel, and zeros for the new channels; no parameters."""

    def __init__(self, new_channels: int, stride: int):
        super().__init__()
        self.new_channels = new_channels
        self.stride = stride

    def forward(self, maps: Tensor) -> Tensor:
        """[B, C, H, W] to [B, C + new_channels, H / stride, W / stride]."""
        return F.pad(maps[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_channels))


def projection(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Option B of the paper: a normalised 1x1 convolution."""
    return nn.Sequential(conv1x1(inputs, outputs, stride), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two normalised 3x3 convolutions beside ``shortcut``.

    Maps [B, inputs, H, W] become [B, outputs, H / stride, W / stride].
    """

    def __init__(self, inputs: int, outputs: int, stride: int, shortcut: nn.Module):
        super().__init__()
        self.conv1 = conv3x3(inputs, outputs, stride)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = conv3x3(outputs, outputs)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = shortcut

    def forward(self, maps: Tensor) -> Tensor:
        """Maps [B, outputs, H / stride, W / stride]."""
        return F.relu(self.response(maps))

    def response(self, maps: Tensor) -> Tensor:
        """The same before the last ReLU."""
        inner = F.relu(self.norm1(self.conv1(maps)))
        return self.norm2(self.conv2(inner)) + self.shortcut(maps)


def make_stage(inputs: int, outputs: int, blocks: int, stride: int, *, padded: bool) -> nn.Sequential:
    """``blocks`` basic blocks of ``outputs`` channels, the first one with the stride."""
    first: nn.Module = nn.Identity()
    if inputs != outputs or stride != 1:
        first = PaddedShortcut(outputs - inputs, stride) if padded else projection(inputs, outputs, stride)
    rest = [BasicBlock(outputs, outputs, 1, nn.Identity()) for _ in range(blocks - 1)]
    return nn.Sequential(BasicBlock(inputs, outputs, stride, first), *rest)


class BasicResNet(Network):
    """A stem and stages of basic blocks; a subclass says which. Feature maps: those after each stage."""

    stem: nn.Module
    stages: nn.ModuleList

    def feature_maps(self, prepared: Tensor) -> list[Tensor]:
        """One map [B, C, H, W] per stage; each has half the side of the one before."""
        return after_each(self.stages, self.stem(prepared))

    def responses(self, prepared: Tensor) -> list[Tensor]:
        """The same before the last ReLU of each stage."""
        return before_each(
            self.stages,
            self.stem(prepared),
            lambda stage, maps: stage[-1].response(up_to_last(stage, maps)),
            self.activation,
        )


class CifarResNet(BasicResNet):
    """ResNet of depth 6n + 2: three stages of n blocks with 16, 32 and 64 channels, padded shortcuts.

    Args:
        depth: 6n + 2, e.g. 20, 32, 44, 56 or 110.
        classes: names of the classes.
        preprocess: how the pixels are prepared.
    """

    def __init__(self, depth: int, classes: LabelSpace, preprocess: Preprocess):
        if depth < 8 or (depth - 2) % 6:
            raise UserError(
                f"resnet-{depth}: the depth of a ResNet for small images is 6n + 2 (8, 14, 20, "
                f"32, 44, 56, 110…); there are also resnet-12, resnet-18 and resnet-34"
            )
        super().__init__(f"resnet-{depth}", 64, classes, preprocess)
        self.stem = nn.Sequential(conv3x3(preprocess.channels, 16), nn.BatchNorm2d(16), nn.ReLU())
        blocks = (depth - 2) // 6
        shapes = ((16, 16, 1), (16, 32, 2), (32, 64, 2))
        self.stages = nn.ModuleList(
            make_stage(inputs, outputs, blocks, stride, padded=True) for inputs, outputs, stride in shapes
        )
        self.head = nn.Linear(self.dim, len(classes))
        initialise(self)


class ImageNetResNet(BasicResNet):
    """ResNet-18 or ResNet-34: four stages with 64, 128, 256 and 512 channels, projections as shortcuts.

    For images of up to 64 pixels the stem is a 3x3 convolution that keeps the resolution; for larger ones
    it is the original, a 7x7 convolution and a max-pooling that divide the side by four.

    Args:
        depth: 18 or 34.
        classes: names of the classes.
        preprocess: how the pixels are prepared; its size decides about the stem.
    """

    def __init__(self, depth: int, classes: LabelSpace, preprocess: Preprocess):
        if depth not in IMAGENET_BLOCKS:
            raise UserError(f"resnet-{depth}: a ResNet of basic blocks for ImageNet has depth 18 or 34")
        super().__init__(f"resnet-{depth}", 512, classes, preprocess)
        channels = preprocess.channels
        if is_small(preprocess):
            self.stem = nn.Sequential(conv3x3(channels, 64), nn.BatchNorm2d(64), nn.ReLU())
        else:
            self.stem = nn.Sequential(
                nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False),
                nn.BatchNorm2d(64),
                nn.ReLU(),
                nn.MaxPool2d(3, stride=2, padding=1),
            )
        shapes = ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
        self.stages = nn.ModuleList(
            make_stage(inputs, outputs, blocks, stride, padded=False)
            for (inputs, outputs, stride), blocks in zip(shapes, IMAGENET_BLOCKS[depth])
        )
        self.head = nn.Linear(self.dim, len(classes))
        initialise(self)
