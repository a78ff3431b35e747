"""The plain convolutional network of few-shot learning (Vinyals et al., 2016; Snell et al., 2017).

Each block is as in Snell et al. (https://arxiv.org/abs/1703.05175): a 3x3 convolution with bias to 64
channels, batch normalisation, ReLU, max-pooling. Four blocks on three channels have 113,088 parameters.
"""

from torch import Tensor, nn

from refilled.errors import UserError
from refilled.labels import LabelSpace
from refilled.models.layers import Halve, after_each, before_each, initialise
from refilled.models.network import Network, Preprocess

CHANNELS = 64
MOST_BLOCKS = 6


class ConvNet(Network):
    """``blocks`` blocks of 64 channels, each of which halves the side while it is above one pixel.

    The embedding is the average of the last map over its positions, so its length is 64 at any image size.

    Args:
        blocks: from 1 to 6; the literature's network has 4.
        classes: names of the classes.
        preprocess: how the pixels are prepared.
    """

    def __init__(self, blocks: int, classes: LabelSpace, preprocess: Preprocess):
        if not 1 <= blocks <= MOST_BLOCKS:
            raise UserError(f"convnet-{blocks}: a ConvNet has from 1 to {MOST_BLOCKS} blocks")
        super().__init__(f"convnet-{blocks}", CHANNELS, classes, preprocess)
        inputs = [preprocess.channels] + [CHANNELS] * (blocks - 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(channels, CHANNELS, 3, padding=1), nn.BatchNorm2d(CHANNELS), nn.ReLU(), Halve()
            )
            for channels in inputs
        )
        self.head = nn.Linear(self.dim, len(classes))
        initialise(self)

    def refresh(self) -> None:
        """Fresh weights: those that a new network would have, by the same random numbers."""
        for module in self.modules():  # in the order in which they were made
            if isinstance(module, (nn.Conv2d, nn.BatchNorm2d, nn.Linear)):
                module.reset_parameters()
        initialise(self)

    def feature_maps(self, prepared: Tensor) -> list[Tensor]:
        """One map [B, 64, H, W] per block, pooled; for images of 84 pixels of sides 42, 21, 10, 5."""
        return after_each(self.blocks, prepared)

    def responses(self, prepared: Tensor) -> list[Tensor]:
        """The same without the ReLU of each block: to pool before it, or after, gives the same map."""

        def response(block: nn.Sequential, maps: Tensor) -> Tensor:
            convolve, normalise, _, halve = block
            return halve(normalise(convolve(maps)))

        return before_each(self.blocks, prepared, response, self.activation)
