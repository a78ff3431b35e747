"""How a model of transformers wants its images, read from its ``preprocessor_config.json``.

The file is read as it is: image processors themselves need torchvision, and work on one image at a time.
"""

from typing import Any

from refilled.errors import UserError
from refilled.models.network import IMAGENET_MEAN, IMAGENET_STD, Preprocess


def hf_preprocess(spec: str, told: dict[str, Any] | None, config: Any) -> Preprocess:
    """The preprocessing that the file describes.

    Args:
        spec: name of the model, for messages.
        told: contents of the file, or None if there is none: then ImageNet's mean and std.
        config: the model's configuration, which may know the number of channels and the image size.
    """
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    side = None
    if told is not None:
        if told.get("do_flip_channel_order"):
            raise UserError(f"{spec} takes images with the channels blue, green, red, which is not supported")
        mean, std = _mean_and_std(told)
        side = _side(spec, told)
    channels = getattr(config, "num_channels", len(mean))
    if len(mean) != channels:
        mean, std = (sum(mean) / len(mean),) * channels, (sum(std) / len(std),) * channels
    if side is None:
        side = getattr(config, "image_size", None)
    return Preprocess(side if isinstance(side, int) else 224, mean, std)


def _mean_and_std(told: dict[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std for pixels from 0 to 1; rescaling to another range is folded into them."""
    mean, std = told.get("image_mean"), told.get("image_std")
    if told.get("do_normalize") is False or mean is None or std is None:
        mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    factor = 255.0
    if told.get("do_rescale", True):
        factor *= told.get("rescale_factor", 1 / 255)
    if abs(factor - 1) < 1e-6:
        factor = 1.0
    offset = 1.0 if told.get("rescale_offset") else 0.0
    # The model sees (factor * pixel - offset - mean) / std.
    return (
        tuple((float(value) + offset) / factor for value in mean),
        tuple(float(value) / factor for value in std),
    )


def _side(spec: str, told: dict[str, Any]) -> int | None:
    """Side of the images as the model gets them: what is cropped, or else what they are resized to."""
    size = told.get("crop_size") if told.get("do_center_crop") else None
    size = size or told.get("size")
    if not isinstance(size, dict):
        return size
    height = size.get("height", size.get("shortest_edge"))
    if size.get("width", height) != height:
        raise UserError(
            f"{spec} takes images of {height} x {size['width']} pixels; only square ones are supported"
        )
    return height
