"""The architectures written here, by their short names: ``wrn-16-2``, ``resnet-32``, ``mobilenet-0.5``…"""

import re

from refilled.errors import UserError
from refilled.labels import LabelSpace
from refilled.models.convnet import ConvNet
from refilled.models.mobilenet import MobileNet
from refilled.models.network import Network, Preprocess
from refilled.models.resnet import IMAGENET_BLOCKS, CifarResNet, ImageNetResNet
from refilled.models.resnet12 import ResNet12
from refilled.models.wide_resnet import WideResNet

EXAMPLES = (
    "wrn-16-2",
    "wrn-40-2",
    "resnet-20",
    "resnet-32",
    "resnet-18",
    "resnet-34",
    "resnet-12",
    "mobilenet-1",
    "mobilenet-0.5",
    "convnet-4",
)
"""One name of each kind, for messages and help."""

_FORMS = {
    "wrn": (r"(\d+)-(\d+)", "wrn-DEPTH-WIDTH with a depth of 6n + 4, e.g. wrn-16-2 or wrn-40-2"),
    "resnet": (r"(\d+)", "resnet-DEPTH with a depth of 6n + 2, or 12, 18, 34, e.g. resnet-32"),
    "mobilenet": (r"(\d+(?:\.\d+)?)", "mobilenet-WIDTH with a width above 0, e.g. mobilenet-0.5"),
    "convnet": (r"(\d+)", "convnet-BLOCKS with 1 to 6 blocks, e.g. convnet-4"),
}


def is_native(spec: str) -> bool:
    """Whether the name is of one of our families (it may still be no member of it)."""
    return spec.partition("-")[0] in _FORMS


def _numbers(spec: str) -> tuple[str, list[str]]:
    """Family and numbers of a name: ``("wrn", ["16", "2"])``; a malformed one is refused with the rule."""
    family, _, rest = spec.partition("-")
    pattern, rule = _FORMS[family]
    match = re.fullmatch(pattern, rest)
    if match is None:
        raise UserError(f"{spec}: a {family} is written {rule}")
    return family, list(match.groups())


def published_size(spec: str) -> int:
    """Side in pixels of the images that the architecture was published with."""
    family, numbers = _numbers(spec)
    if family == "convnet" or spec == "resnet-12":
        return 84
    if family == "mobilenet" or (family == "resnet" and int(numbers[0]) in IMAGENET_BLOCKS):
        return 224
    return 32


def build(spec: str, classes: LabelSpace, preprocess: Preprocess, dropout: float = 0.0) -> Network:
    """A network of ours with fresh weights.

    Args:
        spec: its short name.
        classes: names of its classes.
        preprocess: how it prepares pixels; the image size also decides about the strides of some.
        dropout: of wide ResNets; the others have none.
    """
    family, numbers = _numbers(spec)
    if family == "wrn":
        return WideResNet(int(numbers[0]), int(numbers[1]), classes, preprocess, dropout)
    if family == "mobilenet":
        return MobileNet(float(numbers[0]), classes, preprocess)
    number = int(numbers[0])
    if family == "convnet":
        return ConvNet(number, classes, preprocess)
    if number == 12:
        return ResNet12(classes, preprocess)
    if number in IMAGENET_BLOCKS:
        return ImageNetResNet(number, classes, preprocess)
    return CifarResNet(number, classes, preprocess)
