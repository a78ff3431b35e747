"""Random changes to training images: every sample its own, the whole batch in one operation."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from refilled.errors import UserError, unknown

AUGMENTATIONS = ("none", "crop", "crop-flip", "resized-crop-flip")
SMALLEST_AREA = 0.35
"""Least share of the image that a resized crop shows. torchvision's 0.08 suits a million images and
300 epochs; at the sizes and lengths of distillation it hides the object too often."""
WIDEST_ASPECT = 4 / 3
Show = Callable[[Tensor, str, Tensor], Tensor]
"""What :func:`show` does, or its compiled form."""


def augment(images: Tensor, name: str, generator: torch.Generator | None) -> Tensor:
    """Augmented images as float32 [B, C, H, W] from 0 to 1.

    - ``none``: only converted.
    - ``crop``: shifted by up to an eighth of the side in each direction (4 pixels of 32, 1 of 8), zeros
      move in: the usual padded random crop.
    - ``crop-flip``: that, and half of the samples mirrored.
    - ``resized-crop-flip``: a box of 35 to 100 % of the area, with an aspect of 3/4 to 4/3, is stretched
      to the whole image (bilinear); half of the samples mirrored.

    Args:
        images: uint8 [B, C, H, W], or floating point from 0 to 1.
        name: one of ``AUGMENTATIONS``.
        generator: source of all draws, on the images' device; None for PyTorch's global one.
    """
    if images.ndim != 4:
        raise UserError(f"images to augment must be [B, C, H, W], not {list(images.shape)}")
    side = (images.shape[2], images.shape[3])
    return show(images, name, draw_views(name, len(images), side, generator, images.device))


def view_count(name: str, side: tuple[int, int]) -> int | None:
    """How many different views an image of that height and width has; None where they are endless."""
    if name == "none":
        return 1
    if name in ("crop", "crop-flip"):
        shifts = (2 * (side[0] // 8) + 1) * (2 * (side[1] // 8) + 1)
        return 2 * shifts if name == "crop-flip" else shifts
    if name == "resized-crop-flip":
        return None
    raise unknown("augmentation", name, AUGMENTATIONS)


def draw_views(
    name: str, count: int, side: tuple[int, int], generator: torch.Generator | None, device: torch.device
) -> Tensor:
    """Draw views of ``count`` images: their numbers int64 [count], each as likely as any other; where views
    are endless, boxes and flips float32 [count, 5] of :func:`draw_boxes` and :func:`draw_flips`."""
    family = view_count(name, side)
    if family is not None:
        return torch.randint(0, family, (count,), generator=generator, device=device)
    boxes, mirrored = draw_boxes(count, generator, device), draw_flips(count, generator, device)
    return torch.cat([boxes, mirrored[:, None].float()], dim=1)


def show(images: Tensor, name: str, views: Tensor) -> Tensor:
    """The views of the images, as float32 [B, C, H, W] from 0 to 1; one batched operation.

    Args:
        images: uint8 [B, C, H, W], or floating point from 0 to 1.
        name: one of ``AUGMENTATIONS``.
        views: of :func:`draw_views`, one per image.
    """
    if name == "none":
        return unit_floats(images)
    if name in ("crop", "crop-flip"):  # moving bytes first and converting then is a quarter of the traffic
        return unit_floats(_shift(images, views, flip=name == "crop-flip"))
    if name == "resized-crop-flip":
        return _resized_crop(unit_floats(images), views)
    raise unknown("augmentation", name, AUGMENTATIONS)


def unit_floats(images: Tensor) -> Tensor:
    """Images as float32 from 0 to 1: bytes are divided by 255, floating point is taken as it is."""
    return images.float().div_(255) if images.dtype == torch.uint8 else images.float()


def draw_flips(count: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
    """Which samples are mirrored: bool [count], each with probability 1/2."""
    return torch.rand(count, generator=generator, device=device) < 0.5


def draw_boxes(count: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
    """Boxes of resized crops as float32 [count, 4]: left, top, width, height as shares of the side."""
    area, aspect, x, y = torch.rand(4, count, generator=generator, device=device)
    area = SMALLEST_AREA + (1 - SMALLEST_AREA) * area
    root = torch.exp((aspect - 0.5) * math.log(WIDEST_ASPECT))  # square root of an aspect of 3/4 to 4/3
    width, height = (area.sqrt() * root).clamp(max=1), (area.sqrt() / root).clamp(max=1)
    return torch.stack([x * (1 - width), y * (1 - height), width, height], dim=1)


def _shift(images: Tensor, views: Tensor, flip: bool) -> Tensor:
    """Every pixel is looked up where it comes from; a shifted and mirrored image is one gather."""
    count, channels, height, width = images.shape
    pad_y, pad_x = height // 8, width // 8
    shifts = (views // 2 if flip else views)[:, None]
    down, right = shifts // (2 * pad_x + 1), shifts % (2 * pad_x + 1)
    rows, columns = torch.arange(height, device=images.device), torch.arange(width, device=images.device)
    source_x = columns.expand(count, -1)
    if flip:
        source_x = torch.where(views[:, None] % 2 == 1, width - 1 - columns, source_x)
    padded = F.pad(images, (pad_x, pad_x, pad_y, pad_y))
    flat = (down + rows)[:, :, None] * padded.shape[-1] + (right + source_x)[:, None, :]
    index = flat.view(count, 1, -1).expand(-1, channels, -1)
    return padded.flatten(2).gather(2, index).view(images.shape)


def _resized_crop(images: Tensor, views: Tensor) -> Tensor:
    left, top, width, height, mirrored = views.unbind(1)
    # affine_grid's coordinates run from -1 to 1: the box's half width and its centre, in those units
    scale_x = torch.where(mirrored > 0, -width, width)
    zero = torch.zeros_like(width)
    across = torch.stack([scale_x, zero, 2 * left + width - 1], dim=1)
    along = torch.stack([zero, height, 2 * top + height - 1], dim=1)
    grid = F.affine_grid(torch.stack([across, along], dim=1), list(images.shape), align_corners=False)
    crops = F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return crops.clamp_(0, 1)  # interpolation weights may sum to a hair more than 1
