from pathlib import Path

import numpy as np
import pytest
from image_files import bad_files, near, save_image
from PIL import Image

from refilled.data.decode import BadImage, decode, size_on_disk

RAMP = np.linspace(0, 255, 16 * 16).reshape(16, 16)


def saved(tmp_path: Path, image: Image.Image, suffix: str, **options) -> Path:
    path = tmp_path / f"image{suffix}"
    image.save(path, **options)
    return path


def test_plain_colour_image_is_read_as_it_is(tmp_path):
    array = np.random.default_rng(0).integers(0, 256, (10, 10, 3), dtype=np.uint8)
    for suffix in (".png", ".bmp", ".ppm", ".tif"):
        path = saved(tmp_path, Image.fromarray(array), suffix)
        assert np.array_equal(decode(path, 10), array.transpose(2, 0, 1))


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_sixteen_bits_are_scaled_not_clipped(tmp_path, suffix):
    deep = (RAMP * 257).round().astype(np.uint16)
    pixels = decode(saved(tmp_path, Image.fromarray(deep), suffix), 16)
    assert pixels.shape == (3, 16, 16)
    assert near(pixels, RAMP[None])


def test_big_endian_sixteen_bits(tmp_path):
    path = tmp_path / "big.tif"
    little = Image.fromarray((RAMP * 257).round().astype(np.uint16))
    little.convert("I").convert("I;16B").save(path)
    with Image.open(path) as image:
        assert image.mode == "I;16B"
    assert near(decode(path, 16), RAMP[None])


@pytest.mark.parametrize(
    "values",
    [
        (RAMP * 257).astype(np.int32),  # 16 bits in a wider container
        (RAMP * 1_000_000 - 5).astype(np.int32),  # beyond: stretched
        RAMP.astype(np.float32),
        (RAMP / 255).astype(np.float32),
        (RAMP * 40 - 3000).astype(np.float32),
    ],
)
def test_whole_numbers_of_32_bits_and_floats(tmp_path, values):
    assert near(decode(saved(tmp_path, Image.fromarray(values), ".tif"), 16), RAMP[None])


def test_float_image_with_gaps(tmp_path):
    values = (RAMP / 255).astype(np.float32)
    values[0, 0] = np.nan
    assert near(decode(saved(tmp_path, Image.fromarray(values), ".tif"), 16), RAMP[None])


def test_one_bit_and_gray(tmp_path):
    bits = Image.fromarray(RAMP > 127)
    assert bits.mode == "1"
    assert set(np.unique(decode(saved(tmp_path, bits, ".png"), 16))) == {0, 255}
    gray = Image.fromarray(RAMP.astype(np.uint8))
    assert near(decode(saved(tmp_path, gray, ".png"), 16, channels=1), RAMP[None])
    assert decode(saved(tmp_path, gray, ".png"), 4, channels=1).shape == (1, 4, 4)


def test_cmyk_jpeg(tmp_path):
    red = Image.new("RGB", (16, 16), (250, 10, 20)).convert("CMYK")
    assert near(decode(saved(tmp_path, red, ".jpg", quality=95), 16)[:, 8, 8], np.array([250, 10, 20]), 8)


def test_palette_with_transparency_becomes_white(tmp_path):
    image = Image.new("P", (8, 8), 0)
    image.putpalette([10, 20, 30, 200, 100, 50] + [0] * 762)
    image.paste(1, (0, 0, 4, 8))
    pixels = decode(saved(tmp_path, image, ".png", transparency=0), 8)
    assert pixels[:, 0, 0].tolist() == [200, 100, 50]
    assert pixels[:, 0, 7].tolist() == [255, 255, 255]
    assert decode(saved(tmp_path, image, ".png"), 8)[:, 0, 7].tolist() == [10, 20, 30]


def test_alpha_is_composited_on_white(tmp_path):
    half = Image.new("RGBA", (8, 8), (0, 0, 0, 128))
    assert near(decode(saved(tmp_path, half, ".png"), 8), np.full((3, 8, 8), 127))
    clear = Image.new("LA", (8, 8), (0, 0))
    assert decode(saved(tmp_path, clear, ".png"), 8).min() == 255
    keyed = Image.new("RGB", (8, 8), (1, 2, 3))
    assert decode(saved(tmp_path, keyed, ".png", transparency=(1, 2, 3)), 8).min() == 255


def test_animation_gives_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    for suffix in (".gif", ".webp"):
        options = {"lossless": True} if suffix == ".webp" else {}
        path = saved(tmp_path, frames[0], suffix, save_all=True, append_images=frames[1:], **options)
        assert decode(path, 8)[:, 4, 4].tolist() == [255, 0, 0]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".tif"])
def test_exif_orientation_is_applied(tmp_path, orientation, suffix):
    upright = Image.new("RGB", (24, 16), "white")
    upright.paste("red", (4, 0, 12, 8))  # the upper left of the centre square
    back = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # Transpose that undoes each orientation
    stored = upright if orientation == 1 else upright.transpose(Image.Transpose(back[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    pixels = decode(saved(tmp_path, stored, suffix, exif=exif), 16).astype(int)
    redness = pixels[0] - pixels[1]
    assert redness[1:7, 1:7].min() > 150
    assert np.abs(redness[9:]).max() < 60
    assert np.abs(redness[:, 9:]).max() < 60


def test_centre_square_of_wide_and_tall_images(tmp_path):
    wide = Image.new("RGB", (60, 20), "blue")
    wide.paste("red", (20, 0, 40, 20))
    for image in (wide, wide.transpose(Image.Transpose.ROTATE_90)):
        inner = decode(saved(tmp_path, image, ".png"), 10)[:, 1:-1, 1:-1]  # at the border colours mix
        assert inner.reshape(3, -1).T.tolist() == [[255, 0, 0]] * 64


def test_large_jpeg_is_close_to_a_careful_resize(tmp_path):
    x, y = np.meshgrid(np.linspace(0, 6, 400), np.linspace(0, 6, 400))
    picture = np.stack([np.sin(x), np.cos(y), np.sin(x + y)], axis=-1) * 100 + 128
    path = saved(tmp_path, Image.fromarray(picture.astype(np.uint8)), ".jpg", quality=95)
    with Image.open(path) as image:
        careful = np.asarray(image.resize((32, 32), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
    assert near(decode(path, 32), careful.astype(float), 4)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("cut", "truncated"), ("text", "not an image"), ("empty", "file is empty"), ("noise", "not an image")],
)
def test_bad_files_have_a_reason_of_one_line(tmp_path, kind, reason):
    with pytest.raises(BadImage, match=reason) as caught:
        decode(bad_files(tmp_path)[kind], 8)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_missing_file_and_decompression_bomb(tmp_path, monkeypatch):
    with pytest.raises(BadImage, match="no such file"):
        decode(tmp_path / "none.jpg", 8)
    assert size_on_disk(tmp_path / "none.jpg") is None
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    with pytest.raises(BadImage, match=r"^Image size \(144 pixels\) exceeds limit of 100 pixels$"):
        decode(save_image(tmp_path / "huge.png"), 8)
