from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from image_files import near, save_image
from PIL import Image

from refilled.data.decode import BadImage, decode, square_around
from refilled.data.pixels import FilePixels, common_side
from refilled.errors import UserError


def careful(image: Image.Image, box, size: int) -> np.ndarray:
    """The square around a box cut out of the whole image, pixel by pixel, and resized then."""
    left, top, right, bottom = (round(edge) for edge in square_around(box, image.size))
    pixels = np.asarray(image.convert("RGB"))
    cut = np.empty((bottom - top, right - left, 3), dtype=np.uint8)
    for row in range(top, bottom):
        for column in range(left, right):
            cut[row - top, column - left] = pixels[row, column]
    resized = Image.fromarray(cut).resize((size, size), Image.Resampling.BICUBIC)
    return np.asarray(resized).transpose(2, 0, 1).astype(float)


def waves(width: int, height: int, period: float = 40) -> Image.Image:
    x, y = np.meshgrid(np.arange(width) / period, np.arange(height) / period)
    picture = np.stack([np.sin(6 * x), np.cos(6 * y), np.sin(6 * (x + y))], axis=-1) * 100 + 128
    return Image.fromarray(picture.astype(np.uint8))


@pytest.mark.parametrize(
    ("box", "square"),
    [
        ((10, 20, 30, 40), (10, 20, 30, 40)),  # a square is taken as it is
        ((10, 20, 30, 30), (10, 15, 30, 35)),  # the longer side counts, the centre stays
        ((10, 0, 30, 10), (10, 0, 30, 20)),  # moved down to lie within
        ((90, 10, 100, 40), (70, 10, 100, 40)),  # and to the left
        ((0, 5, 90, 45), (15, 0, 75, 60)),  # no larger than the image is high
        ((-20, -20, 20, 10), (0, 0, 20, 20)),  # what is beyond the image does not count
        ((0, 0, 100, 60), (20, 0, 80, 60)),
    ],
)
def test_square_around_a_box(box, square):
    assert square_around(box, (100, 60)) == square


@given(
    st.tuples(*[st.floats(-50, 150)] * 2, *[st.floats(0.5, 150)] * 2),
    st.tuples(st.integers(1, 120), st.integers(1, 120)),
)
def test_the_square_is_square_and_within_the_image(start_and_size, image):
    left, top, width, height = start_and_size
    try:
        x0, y0, x1, y1 = square_around((left, top, left + width, top + height), image)
    except BadImage:
        assert left >= image[0] or top >= image[1] or left + width <= 0 or top + height <= 0
        return
    assert x1 - x0 == pytest.approx(y1 - y0)
    assert x1 - x0 <= max(width, height) + 1e-6
    assert -1e-9 <= x0 < x1 <= image[0] + 1e-9
    assert -1e-9 <= y0 < y1 <= image[1] + 1e-9


def test_pixels_of_the_square_are_taken_as_they_are(tmp_path):
    array = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    Image.fromarray(array).save(tmp_path / "image.png")
    pixels = decode(tmp_path / "image.png", 10, box=(25, 8, 31, 18))
    assert np.array_equal(pixels, array[8:18, 23:33].transpose(2, 0, 1))
    whole = save_image(tmp_path / "square.png", side=12)
    assert np.array_equal(decode(whole, 12, box=(0, 0, 12, 12)), decode(whole, 12))
    assert decode(whole, 6, channels=1, box=(2, 2, 8, 8)).shape == (1, 6, 6)


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
@pytest.mark.parametrize(
    "box", [(40, 30, 200, 120), (301, 203, 341, 243), (0, 0, 601, 403), (580, 8, 601, 31)]
)
@pytest.mark.parametrize("size", [16, 40])
def test_crop_is_close_to_the_slow_one(tmp_path, suffix, box, size):
    path = tmp_path / f"image{suffix}"
    waves(601, 403, period=150).save(path, **({"quality": 98, "subsampling": 0} if suffix == ".jpg" else {}))
    with Image.open(path) as image:
        expected = careful(image, box, size)
    # at the border, what lies beyond the square plays a part too
    assert near(decode(path, size, box=box)[:, 2:-2, 2:-2], expected[:, 2:-2, 2:-2], 5)


def test_a_small_box_of_a_large_jpeg_keeps_its_detail(tmp_path):
    stripes = np.zeros((1024, 1024, 3), dtype=np.uint8)
    stripes[:, ::2] = 255  # gone at half the size
    path = tmp_path / "stripes.jpg"
    Image.fromarray(stripes).save(path, quality=100, subsampling=0)
    pixels = decode(path, 32, box=(512, 512, 544, 544))
    assert near(pixels, stripes[512:544, 512:544].transpose(2, 0, 1).astype(float), 16)
    assert int(decode(path, 32)[:, 4:-4, 4:-4].std()) < 8  # the whole image at that size is gray


def test_a_jpeg_is_drafted_only_as_far_as_the_square_allows(tmp_path, monkeypatch):
    from PIL import JpegImagePlugin

    path = tmp_path / "large.jpg"
    waves(803, 601).save(path)
    sizes = []
    real = JpegImagePlugin.JpegImageFile.draft

    def draft(self, mode, size):
        result = real(self, mode, size)
        sizes.append(self.size)
        return result

    monkeypatch.setattr(JpegImagePlugin.JpegImageFile, "draft", draft)
    for box in (None, (0, 0, 600, 600), (100, 100, 400, 400), (100, 100, 260, 260), (100, 100, 140, 140)):
        decode(path, 32, box=box)
    assert sizes == [(101, 76), (101, 76), (201, 151), (402, 301), (803, 601)]


def test_a_box_is_of_the_stored_image_and_turned_with_it(tmp_path):
    stored = Image.new("RGB", (60, 40), "white")
    stored.paste("red", (30, 10, 40, 15))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    stored.save(tmp_path / "turned.png", exif=exif)
    pixels = decode(tmp_path / "turned.png", 10, box=(30, 10, 40, 20))
    assert (pixels[1, 1:-1, 6:].max(), pixels[1, 1:-1, :4].min()) == (0, 255)


def test_a_box_beside_the_image_is_a_bad_image(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = [save_image(Path(f"{index}.png"), seed=index) for index in range(3)]
    boxes = [None, (20, 20, 30, 30), (0, 0, 6, 6)]
    with pytest.raises(
        UserError, match=r"cannot read 1.png: the box .* covers nothing .* 12 x 12 \(1 file of 3"
    ):
        FilePixels(paths, boxes=boxes).load(6)
    assert FilePixels(paths, boxes=boxes, skip_bad_images=True).load(6)[1].tolist() == [0, 2]
    assert common_side(paths, boxes) is None
    assert common_side(paths[1:], boxes[1:]) == 6


def test_boxes_stay_with_their_images(tmp_path):
    paths = [save_image(tmp_path / f"{index}.png", side=20, seed=index) for index in range(40)]
    boxes = [None if index % 3 == 0 else (index % 7, 2, index % 7 + 8, 10) for index in range(40)]
    files = FilePixels(paths, boxes=boxes)
    whole = files.load(8)[0]
    for index in (0, 1, 5, 39):
        assert np.array_equal(whole[index].numpy(), decode(paths[index], 8, box=boxes[index]))
    chosen = files.select([7, 3, 38, 0]).select([2, 0, 1])
    assert chosen.paths == (paths[38], paths[7], paths[3])
    assert chosen.boxes == (boxes[38], boxes[7], None)
    assert torch.equal(chosen.load(8)[0], whole[[38, 7, 3]])
    assert FilePixels(paths).select([1]).boxes is None
    with pytest.raises(UserError, match="40 images need as many boxes, not 2"):
        FilePixels(paths, boxes=boxes[:2])


def test_own_size_is_that_of_the_squares(tmp_path):
    paths = [save_image(tmp_path / f"{side}.png", side=side) for side in (20, 30)]
    assert FilePixels(paths, boxes=[(1, 1, 9, 7), (0, 0, 8, 3)]).load(None)[0].shape == (2, 3, 8, 8)
    for boxes in ([(0, 0, 7.5, 7.5)] * 2, [(0, 0, 8, 8), None], [(0, 0, 8, 8), (0, 0, 9, 9)]):
        assert common_side(paths, boxes) is None
