"""The one contract that every model fulfils, teacher or student, ours or another library's."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from refilled.labels import LabelSpace

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Preprocess:
    """How a network wants its images: side in pixels (None: any), mean and std per channel."""

    size: int | None = None
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    @property
    def channels(self) -> int:
        """Number of colour channels."""
        return len(self.mean)

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary; :meth:`from_json` is its inverse."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Preprocess":
        """Read what :meth:`to_json` wrote."""
        return cls(data["size"], tuple(data["mean"]), tuple(data["std"]))


class Network(nn.Module):
    """A model that embeds images and classifies embeddings.

    Every network takes the same input, plain pixels: float images of shape [B, channels, H, W] with
    values from 0 to 1, of any side. It prepares them itself (:meth:`prepare`), so that a teacher sees
    them as it was trained to, whatever the student wants.

    A subclass sets ``head`` (the last linear layer), and writes :meth:`feature_maps` or
    :meth:`embed_prepared`; with :meth:`responses` its maps can also be seen before their activation.
    ``notes`` holds what a person should know about how the network came to be, one line each.

    Args:
        spec: what :func:`refilled.load` was given, e.g. ``"wrn-16-2"``.
        dim: length of an embedding.
        classes: names of the classes that the head knows, in its order.
        preprocess: how the pixels are prepared.
    """

    head: nn.Module
    _mean: Tensor
    _std: Tensor

    def __init__(self, spec: str, dim: int, classes: LabelSpace, preprocess: Preprocess):
        super().__init__()
        self.spec = spec
        self.dim = dim
        self.classes = classes
        self.preprocess = preprocess
        self.notes: list[str] = []
        shape = (1, preprocess.channels, 1, 1)
        # Buffers that follow the module's device, but are no weights: student.json holds them.
        self.register_buffer("_mean", torch.tensor(preprocess.mean).view(shape), persistent=False)
        self.register_buffer("_std", torch.tensor(preprocess.std).view(shape), persistent=False)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self._mean.device

    @property
    def has_head(self) -> bool:
        """Whether it tells classes apart; with an identity for a head it is one of embeddings alone."""
        return not isinstance(self.head, nn.Identity)

    def normalise_by(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        """Prepare pixels with these statistics from now on; for a network that has learned nothing yet."""
        self.preprocess = replace(self.preprocess, mean=tuple(mean), std=tuple(std))
        self._mean.copy_(torch.tensor(mean).view_as(self._mean))
        self._std.copy_(torch.tensor(std).view_as(self._std))

    def prepare(self, images: Tensor) -> Tensor:
        """Pixels in 0..1, or bytes, [B, channels, H, W] as this network wants them: its side, normalised."""
        if images.dtype == torch.uint8:
            images = images / 255
        channels, wanted = images.shape[1], self._mean.shape[1]  # compiled for any statistics
        if channels != wanted:
            if channels != 1:
                raise ValueError(
                    f"{self.spec} takes {wanted} channels, the images have {channels}: {tuple(images.shape)}"
                )
            images = images.expand(-1, wanted, -1, -1)
        size = self.preprocess.size
        if size is not None and images.shape[-2:] != (size, size):
            images = F.interpolate(
                images, size=(size, size), mode="bilinear", antialias=True, align_corners=False
            )
        return (images - self._mean) / self._std

    def features(self, images: Tensor) -> list[Tensor]:
        """Feature maps [B, C, H, W] after each stage of the network, from the first to the last."""
        return self.feature_maps(self.prepare(images))

    def features_and_embedding(self, images: Tensor) -> tuple[list[Tensor], Tensor]:
        """What :meth:`features` and :meth:`embed` say of the images, in one pass."""
        return self.maps_and_embedding(self.prepare(images))

    def responses_and_embedding(self, images: Tensor) -> tuple[list[Tensor], Tensor]:
        """Maps [B, C, H, W] as the activation at the end of each stage is given them, and embeddings
        [B, dim], in one pass."""
        responses = self.responses(self.prepare(images))
        return responses, self.activation(responses[-1]).mean(dim=(2, 3))

    def embed(self, images: Tensor) -> Tensor:
        """Embeddings [B, dim] of images [B, channels, H, W] in 0..1, or bytes."""
        return self.embed_prepared(self.prepare(images))

    def classify(self, embeddings: Tensor) -> Tensor:
        """Logits [B, classes] of embeddings [B, dim]."""
        return self.head(embeddings)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings [B, dim] and logits [B, classes] of images [B, channels, H, W] in 0..1, or bytes."""
        embeddings = self.embed(images)
        return embeddings, self.classify(embeddings)

    def feature_maps(self, prepared: Tensor) -> list[Tensor]:
        """Feature maps of prepared images; what an architecture of ours is written as."""
        raise ValueError(
            f"{self.spec} has no feature maps; choose a method that matches embeddings or logits"
        )

    def embed_prepared(self, prepared: Tensor) -> Tensor:
        """Embeddings of prepared images: the last feature map, averaged over its positions."""
        return self.feature_maps(prepared)[-1].mean(dim=(2, 3))

    def maps_and_embedding(self, prepared: Tensor) -> tuple[list[Tensor], Tensor]:
        """Feature maps and embeddings of prepared images; a network that embeds in its own way needs a
        second pass, unless it knows better."""
        maps = self.feature_maps(prepared)
        if type(self).embed_prepared is not Network.embed_prepared:
            return maps, self.embed_prepared(prepared)
        return maps, maps[-1].mean(dim=(2, 3))

    def responses(self, prepared: Tensor) -> list[Tensor]:
        """Maps of prepared images before the activation that ends each stage, from the first to the last.

        With :meth:`activation`, the last one is the last feature map.
        """
        raise ValueError(
            f"{self.spec} does not tell its feature maps before their activation; choose a method that "
            f"matches feature maps, embeddings or logits"
        )

    def activation(self, responses: Tensor) -> Tensor:
        """What ends each stage."""
        return F.relu(responses)

    def backbone_parameters(self) -> list[nn.Parameter]:
        """Every parameter but the head's: what makes the embedding."""
        of_head = {id(parameter) for parameter in self.head.parameters()}
        return [parameter for parameter in self.parameters() if id(parameter) not in of_head]

    def architecture(self) -> dict[str, Any]:
        """What, beside classes and preprocessing, rebuilds this network: goes into ``student.json``."""
        return {"spec": self.spec}
