"""One image file to one square of 8-bit pixels, whatever kind of image it is."""

import os
from functools import cache
from math import ceil

import numpy as np
from PIL import Image, UnidentifiedImageError

Pathname = str | os.PathLike[str]
Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels of the image as it is stored, before it is turned upright."""

_FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "BMP", "DIB", "GIF", "TIFF", "PPM")
_ORIENTATION = 0x0112  # the EXIF tag
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class BadImage(Exception):
    """A file that is no image, or a damaged one; the message is the reason in a few words."""


@cache
def readable_formats() -> tuple[str, ...]:
    """Formats that this Pillow can open; others (EPS would start Ghostscript) are never tried."""
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def decode(path: Pathname, size: int, channels: int = 3, box: Box | None = None) -> np.ndarray:
    """The centre square of an image, or the square around a box, upright: uint8 [channels, size, size].

    The side of the square (see :func:`square_around`) becomes ``size``. Transparent parts become white;
    of an animation the first frame is taken; deeper images are scaled to 8 bits, not clipped (see
    :func:`eight_bits`).

    Raises:
        BadImage: the file cannot be decoded to its end, or the box lies outside of the image.
    """
    try:
        with Image.open(path, formats=readable_formats()) as image:
            window = None if box is None else square_around(box, image.size)
            window = _draft(image, size, window)
            image.load()
            upright = _UPRIGHT.get(_orientation(image))  # after load(): TIFF turns itself
            square = _resized(eight_bits(image), size, window)
            if upright is not None:
                square = square.transpose(upright)
            pixels = np.asarray(square.convert("RGB" if channels == 3 else "L"))
    except Exception as error:  # damaged files make Pillow's decoders raise nearly anything
        raise BadImage(_reason(error, path)) from error
    return pixels.transpose(2, 0, 1) if channels == 3 else pixels[None]


def size_on_disk(path: Pathname) -> tuple[int, int] | None:
    """Width and height from the file's header, or None where it cannot be read."""
    try:
        with Image.open(path, formats=readable_formats()) as image:
            return image.size
    except Exception:  # as in decode
        return None


def eight_bits(image: Image.Image) -> Image.Image:
    """The same picture in mode L or RGB.

    Whole numbers up to 65535 count as 16 bits and are divided by 257. Floating point counts as 0 to 1,
    or as 0 to 255. What exceeds those ranges is stretched from its lowest to its highest value.
    """
    if image.mode.startswith("I;16"):
        return Image.fromarray(_rescaled(np.asarray(image), 0, 65535))
    if image.mode in ("I", "F"):
        values = np.nan_to_num(np.asarray(image).astype(np.float64), posinf=0.0, neginf=0.0)
        low, high = float(values.min()), float(values.max())
        usual = (65535.0,) if image.mode == "I" else (1.0, 255.0)
        top = next((limit for limit in usual if low >= 0 and high <= limit), None)
        return Image.fromarray(_rescaled(values, 0, top) if top else _rescaled(values, low, high))
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        straight = {"La": "LA", "PA": "RGBA"}.get(image.mode, "RGBA")
        with_alpha = image.convert(straight).convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, with_alpha).convert("RGB")
    return image if image.mode in ("L", "RGB") else image.convert("L" if image.mode == "1" else "RGB")


def _rescaled(values: np.ndarray, low: float, high: float) -> np.ndarray:
    spread = (high - low) or 1.0
    return ((values.astype(np.float64) - low) * (255 / spread)).round().astype(np.uint8)


def square_around(box: Box, size: tuple[int, int]) -> Box:
    """The square that is shown for a box, within an image of that width and height.

    It has the box's centre and its longer side, and is moved as far as it takes to lie within the image.
    Where it is larger than the image's shorter side, it has that side: then the ends of the box are cut
    off, but nothing is stretched and no border is made up. Of a box that reaches beyond the image, the
    part within the image counts.
    """
    left, right = (min(max(x, 0.0), float(size[0])) for x in (box[0], box[2]))
    top, bottom = (min(max(y, 0.0), float(size[1])) for y in (box[1], box[3]))
    if not (left < right and top < bottom):
        raise BadImage(f"the box {box} covers nothing of the image, which is {size[0]} x {size[1]}")
    side = min(max(right - left, bottom - top), *size)
    x = min(max((left + right - side) / 2, 0.0), size[0] - side)
    y = min(max((top + bottom - side) / 2, 0.0), size[1] - side)
    return x, y, x + side, y + side


def _draft(image: Image.Image, size: int, window: Box | None) -> Box | None:
    """Lets a JPEG be decoded at 1/2, 1/4 or 1/8 of its size; returns where the window is then.

    What is shown keeps at least twice the side that is needed: that leaves the antialiasing to the
    resize, so that nothing is lost but time.
    """
    if window is None:
        image.draft(None, (2 * size, 2 * size))
        return None
    width, height = image.size
    enlarged = 2 * size / (window[2] - window[0])
    drafted = image.draft(None, (ceil(enlarged * width), ceil(enlarged * height)))
    if drafted is None:  # no JPEG
        return window
    scale = drafted[1][2] / width  # not that of the new width, which is rounded up
    return window[0] * scale, window[1] * scale, window[2] * scale, window[3] * scale


def _resized(image: Image.Image, size: int, window: Box | None) -> Image.Image:
    """One resize that reads only the window, or the centre square; its borders may lie between pixels,
    so that turning the image before or after makes no difference."""
    width, height = image.size
    if window is None:
        short = min(width, height)
        left, top = (width - short) / 2, (height - short) / 2
        window = left, top, left + short, top + short
    if width == height == size and window == (0, 0, size, size):
        return image
    return image.resize((size, size), Image.Resampling.BICUBIC, window, reducing_gap=3.0)


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # a damaged EXIF block does not make the pixels unreadable
        return 1


def _reason(error: Exception, path: Pathname) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image in a format that is read" if os.path.getsize(path) else "the file is empty"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    lines = str(error).partition(", could be")[0].splitlines()  # without the guess at an attack
    return lines[0].strip() if lines else type(error).__name__
