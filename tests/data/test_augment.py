import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from refilled.data.augment import AUGMENTATIONS, SMALLEST_AREA, WIDEST_ASPECT, augment, draw_boxes, draw_flips
from refilled.errors import UserError


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def some_images(count: int = 16, channels: int = 3, side: int = 16) -> torch.Tensor:
    return torch.randint(0, 256, (count, channels, side, side), dtype=torch.uint8, generator=seeded(9))


def crop_reference(images: torch.Tensor, flip: bool, seed: int) -> torch.Tensor:
    """One image after the other, as one would write it down."""
    side = images.shape[-1]
    pad = side // 8
    places = 2 * pad + 1
    views = torch.randint(0, places**2 * (2 if flip else 1), (len(images),), generator=seeded(seed))
    out = []
    for image, view in zip(images, views.tolist()):
        shift, mirrored = divmod(view, 2) if flip else (view, 0)
        down, right = divmod(shift, places)
        padded = F.pad(image, (pad, pad, pad, pad))
        crop = padded[:, down : down + side, right : right + side]
        out.append(crop.flip(-1) if mirrored else crop)
    return torch.stack(out).float() / 255


def resized_crop_reference(images: torch.Tensor, seed: int) -> torch.Tensor:
    """Bilinear interpolation at every pixel of every image, in Python."""
    generator, side = seeded(seed), images.shape[-1]
    boxes = draw_boxes(len(images), generator, images.device)
    flips = draw_flips(len(images), generator, images.device)
    out = torch.empty(images.shape)
    for n, (left, top, width, height) in enumerate((boxes * side).tolist()):
        for row in range(side):
            for column in range(side):
                across = side - 1 - column if flips[n] else column
                x = min(max(left + (across + 0.5) * width / side - 0.5, 0), side - 1)
                y = min(max(top + (row + 0.5) * height / side - 0.5, 0), side - 1)
                x0, y0 = int(x), int(y)
                x1, y1 = min(x0 + 1, side - 1), min(y0 + 1, side - 1)
                image = images[n].float() / 255
                upper = image[:, y0, x0] * (1 - x + x0) + image[:, y0, x1] * (x - x0)
                lower = image[:, y1, x0] * (1 - x + x0) + image[:, y1, x1] * (x - x0)
                out[n, :, row, column] = upper * (1 - y + y0) + lower * (y - y0)
    return out


@pytest.mark.parametrize("side", [7, 8, 16, 32])
@pytest.mark.parametrize("flip", [False, True])
def test_crop_equals_the_slow_one(side, flip):
    images = some_images(side=side)
    fast = augment(images, "crop-flip" if flip else "crop", seeded(3))
    assert torch.equal(fast, crop_reference(images, flip, 3))


def test_resized_crop_equals_the_slow_one():
    images = some_images(count=4, side=9)
    assert torch.allclose(
        augment(images, "resized-crop-flip", seeded(3)), resized_crop_reference(images, 3), atol=1e-4
    )


def test_none_is_the_identity():
    images = some_images()
    assert torch.equal(augment(images, "none", seeded()), images.float() / 255)
    floats = torch.rand(2, 3, 8, 8)
    assert torch.equal(augment(floats, "none", None), floats)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(AUGMENTATIONS),
    st.integers(1, 5),
    st.sampled_from([1, 3]),
    st.integers(4, 20),
    st.integers(0, 99),
)
def test_shape_dtype_range_and_determinism(name, count, channels, side, seed):
    images = some_images(count, channels, side)
    before = images.clone()
    out = augment(images, name, seeded(seed))
    assert (out.shape, out.dtype) == (images.shape, torch.float32)
    assert 0 <= float(out.min()) <= float(out.max()) <= 1
    torch.manual_seed(seed + 1)  # the global state plays no part
    assert torch.equal(out, augment(images, name, seeded(seed)))
    assert torch.equal(images, before)
    halves = (images.float() / 255).to(torch.float64)
    assert torch.allclose(out, augment(halves, name, seeded(seed)), atol=1e-6)


@pytest.mark.parametrize("name", ["crop", "crop-flip", "resized-crop-flip"])
def test_every_sample_has_its_own_draw(name):
    images = some_images(count=1).expand(64, -1, -1, -1)
    out = augment(images, name, seeded())
    assert len({tuple(image.flatten().tolist()) for image in out}) > 15
    assert not torch.equal(out, augment(images, name, seeded(1)))


def test_about_half_are_mirrored_and_they_are_mirrors():
    images = some_images(count=1, side=7).expand(400, -1, -1, -1)  # too small to be shifted
    out = augment(images, "crop-flip", seeded())
    plain = images.float() / 255
    same, mirrored = (out == plain).flatten(1).all(1), (out == plain.flip(-1)).flatten(1).all(1)
    assert torch.equal(same, ~mirrored)
    assert 150 < int(mirrored.sum()) < 250


def test_crop_reaches_every_offset_and_fills_with_zeros():
    images = torch.full((500, 1, 8, 8), 255, dtype=torch.uint8)
    out = augment(images, "crop", seeded())
    kinds = {tuple(image.flatten().tolist()) for image in out}
    assert len(kinds) == 9
    assert set(out.unique().tolist()) == {0.0, 1.0}


def test_boxes_are_within_the_image_and_as_documented():
    left, top, width, height = draw_boxes(5000, seeded(), torch.device("cpu")).unbind(1)
    assert float(torch.stack([left, top]).min()) >= 0
    assert float(torch.stack([left + width, top + height]).max()) <= 1 + 1e-6
    area, aspect = width * height, width / height
    assert SMALLEST_AREA * 0.99 < float(area.max()) <= 1
    free = (width < 1) & (height < 1)  # a box that is cut at the border is smaller and less oblong
    assert float(area[free].min()) >= SMALLEST_AREA - 1e-5
    assert float(aspect.max()) <= WIDEST_ASPECT + 1e-5
    assert float(aspect.min()) >= 1 / WIDEST_ASPECT - 1e-5
    assert 0.6 < float(area.mean()) < 0.7


def test_unknown_name_and_wrong_shape():
    with pytest.raises(UserError, match="unknown augmentation 'crop-flop'; did you mean 'crop-flip'"):
        augment(some_images(), "crop-flop", None)
    with pytest.raises(UserError, match=r"not \[3, 16, 16\]"):
        augment(some_images()[0], "crop", None)
