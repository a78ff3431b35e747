"""Wide residual networks (Zagoruyko & Komodakis, 2016, https://arxiv.org/abs/1605.07146)."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from refilled.errors import UserError
from refilled.labels import LabelSpace
from refilled.models.layers import after_each, conv1x1, conv3x3, initialise
from refilled.models.network import Network, Preprocess


class PreActivationBlock(nn.Module):
    """Two 3x3 convolutions, each after its normalisation and ReLU, beside a shortcut.

    Maps [B, inputs, H, W] become [B, outputs, H / stride, W / stride].
    """

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv3x3(inputs, outputs, stride)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = conv3x3(outputs, outputs)
        self.shortcut: nn.Module | None = None
        if inputs != outputs or stride != 1:
            self.shortcut = conv1x1(inputs, outputs, stride)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps [B, outputs, H / stride, W / stride]."""
        return self.after_norm(maps, self.norm1(maps))

    def after_norm(self, maps: Tensor, normalised: Tensor) -> Tensor:
        """The rest of the block, for maps that are normalised already; both [B, inputs, H, W]."""
        active = F.relu(normalised)
        # A projection starts from the activated maps, an identity from the raw ones, as in the paper's code.
        beside = maps if self.shortcut is None else self.shortcut(active)
        inner = F.relu(self.norm2(self.conv1(active)))
        return beside + self.conv2(self.dropout(inner))


class WideResNet(Network):
    """WRN-depth-width: three groups of (depth - 4) / 6 blocks with 16, 32 and 64 times ``width`` channels.

    Its feature maps are those after each group, the last one normalised and activated; for images of side
    S they have sides S, S / 2 and S / 4. The embedding, their average, has length 64 * width.

    Args:
        depth: 6n + 4, e.g. 16, 28 or 40.
        width: the multiple of channels.
        classes: names of the classes.
        preprocess: how the pixels are prepared.
        dropout: probability of dropping a value between a block's convolutions.
    """

    def __init__(
        self, depth: int, width: int, classes: LabelSpace, preprocess: Preprocess, dropout: float = 0.0
    ):
        if depth < 10 or (depth - 4) % 6:
            raise UserError(f"wrn-{depth}-{width}: the depth of a wide ResNet is 6n + 4: 10, 16, 22, 28, 40…")
        if width < 1:
            raise UserError(f"wrn-{depth}-{width}: the width of a wide ResNet is 1 or more")
        super().__init__(f"wrn-{depth}-{width}", 64 * width, classes, preprocess)
        self.dropout = dropout
        self.stem = conv3x3(preprocess.channels, 16)
        groups, inputs = [], 16
        for outputs, stride in ((16 * width, 1), (32 * width, 2), (64 * width, 2)):
            blocks = [PreActivationBlock(inputs, outputs, stride, dropout)]
            blocks += [PreActivationBlock(outputs, outputs, 1, dropout) for _ in range((depth - 4) // 6 - 1)]
            groups.append(nn.Sequential(*blocks))
            inputs = outputs
        self.groups = nn.ModuleList(groups)
        self.norm = nn.BatchNorm2d(self.dim)
        self.head = nn.Linear(self.dim, len(classes))
        initialise(self)

    def feature_maps(self, prepared: Tensor) -> list[Tensor]:
        """Maps after the three groups: [B, 16w, S, S], [B, 32w, S/2, S/2], [B, 64w, S/4, S/4]."""
        *earlier, last = after_each(self.groups, self.stem(prepared))
        return [*earlier, F.relu(self.norm(last))]

    def responses(self, prepared: Tensor) -> list[Tensor]:
        """Maps after the three groups, each normalised for the ReLU that follows: the first one of the next
        group, or the network's last."""
        maps, normalised = self.stem(prepared), []
        group: Any
        for group in self.groups:
            first, *others = group
            normalised.append(first.norm1(maps))
            maps = first.after_norm(maps, normalised[-1])
            for block in others:
                maps = block(maps)
        return [*normalised[1:], self.norm(maps)]

    def architecture(self) -> dict[str, Any]:
        """The spec, and the dropout that it does not tell."""
        return {**super().architecture(), "dropout": self.dropout}
