"""ResNet-12 of few-shot learning, as in MetaOptNet (Lee et al., 2019, https://arxiv.org/abs/1904.03758).

The wide version, with 64, 160, 320 and 640 channels, that FEAT (Ye et al., 2020) uses too: 12,424,320
parameters below the head. Their DropBlock, a regulariser without parameters, is left out.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from refilled.labels import LabelSpace
from refilled.models.layers import Halve, after_each, before_each, conv1x1, conv3x3, initialise
from refilled.models.network import Network, Preprocess

SLOPE = 0.1


class TripleBlock(nn.Module):
    """Three normalised 3x3 convolutions beside a projection, then max-pooling.

    Maps [B, inputs, H, W] become [B, outputs, H // 2, W // 2].
    """

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.convolutions = nn.Sequential(
            conv3x3(inputs, outputs),
            nn.BatchNorm2d(outputs),
            nn.LeakyReLU(SLOPE),
            conv3x3(outputs, outputs),
            nn.BatchNorm2d(outputs),
            nn.LeakyReLU(SLOPE),
            conv3x3(outputs, outputs),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Sequential(conv1x1(inputs, outputs), nn.BatchNorm2d(outputs))
        self.halve = Halve()

    def forward(self, maps: Tensor) -> Tensor:
        """Maps [B, outputs, H // 2, W // 2]."""
        return self.halve(F.leaky_relu(self.convolutions(maps) + self.shortcut(maps), SLOPE))

    def response(self, maps: Tensor) -> Tensor:
        """The same without the last ReLU: to pool before it, or after, gives the same map."""
        return self.halve(self.convolutions(maps) + self.shortcut(maps))


class ResNet12(Network):
    """Four blocks of three convolutions; embeddings of length 640.

    Args:
        classes: names of the classes.
        preprocess: how the pixels are prepared.
    """

    def __init__(self, classes: LabelSpace, preprocess: Preprocess):
        super().__init__("resnet-12", 640, classes, preprocess)
        shapes = ((preprocess.channels, 64), (64, 160), (160, 320), (320, 640))
        self.blocks = nn.ModuleList(TripleBlock(inputs, outputs) for inputs, outputs in shapes)
        self.head = nn.Linear(self.dim, len(classes))
        initialise(self, negative_slope=SLOPE)

    def feature_maps(self, prepared: Tensor) -> list[Tensor]:
        """Four maps with 64, 160, 320 and 640 channels; for images of 84 pixels of sides 42, 21, 10, 5."""
        return after_each(self.blocks, prepared)

    def responses(self, prepared: Tensor) -> list[Tensor]:
        """The same without the last ReLU of each block."""
        return before_each(self.blocks, prepared, TripleBlock.response, self.activation)

    def activation(self, responses: Tensor) -> Tensor:
        """A leaky ReLU."""
        return F.leaky_relu(responses, SLOPE)
