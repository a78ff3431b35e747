import os
from pathlib import Path

import pytest
import torch
from image_files import save_image

import refilled
from refilled.data import load_set, open_data, open_unlabelled, read_cub
from refilled.data.decode import decode
from refilled.errors import UserError

CLASSES = ("001.Black_footed_Albatross", "002.Laysan_Albatross", "010.Red.winged_Blackbird")


@pytest.fixture
def cub(tmp_path, monkeypatch):
    """Makes CUB_200_2011 with 3 classes of 10 images, half of them for training; returns its parent."""
    monkeypatch.chdir(tmp_path)
    root = Path("data/CUB_200_2011")
    files: dict[str, list[str]] = {name: [] for name in ("images", "labels", "split", "boxes")}
    for number in range(1, 31):
        label = (number - 1) // 10
        name = f"{CLASSES[label]}/Bird_{number:04d}.png"
        save_image(root / "images" / name, side=16 + number % 3, seed=number)
        for file, value in zip(files.values(), (name, label + 1, number % 2, f"{number % 5}.0 2.0 8.0 6.0")):
            file.append(f"{number} {value}\n")
    for file, name in zip(
        files.values(), ("images", "image_class_labels", "train_test_split", "bounding_boxes")
    ):
        (root / f"{name}.txt").write_text("".join(file))
    (root / "classes.txt").write_text("".join(f"{n} {name}\n" for n, name in enumerate(CLASSES, start=1)))
    return Path("data")


def numbers(part) -> list[int]:
    return [int(path.stem[-4:]) for path in part.pixels.paths]


def test_official_parts_names_and_boxes(cub):
    splits = read_cub(cub)
    assert splits.classes.names == ("Black_footed_Albatross", "Laysan_Albatross", "Red.winged_Blackbird")
    assert [part.counts().tolist() for part in (splits.train, splits.val, splits.test)] == [
        [4, 4, 4], [1, 1, 1], [5, 5, 5]
    ]  # fmt: skip
    assert all(number % 2 for number in numbers(splits.train) + numbers(splits.val))
    assert numbers(splits.test) == list(range(2, 31, 2))
    assert (splits.name, splits.image_size, splits.channels, splits.augment) == ("cub", 8, 3, "crop-flip")
    assert splits.note == "validation is 10% of each training class, held out with split seed 0"
    images, labels, _ = load_set(splits.val, 8)
    for image, label, number in zip(images, labels.tolist(), numbers(splits.val)):
        path = cub / "CUB_200_2011" / "images" / CLASSES[label] / f"Bird_{number:04d}.png"
        left = number % 5
        assert torch.equal(image, torch.from_numpy(decode(path, 8, box=(left, 2, left + 8, 8)).copy()))


def test_order_of_lines_does_not_matter_and_seeds_do(cub):
    expected = numbers(read_cub(cub).train)
    assert expected != numbers(read_cub(cub, split_seed=1).train)
    for file in (cub / "CUB_200_2011").glob("*.txt"):
        file.write_text("\n".join(reversed(file.read_text().splitlines())) + "\n\n")
    again = read_cub(cub)
    assert numbers(again.train) == expected
    assert again.classes.names[0] == "Black_footed_Albatross"


def test_whole_photographs_and_no_validation(cub):
    (cub / "CUB_200_2011" / "bounding_boxes.txt").unlink()
    splits = read_cub(cub, crop=False, val_fraction=0)
    assert splits.train.pixels.boxes is None
    assert (splits.image_size, splits.augment, splits.note) == (None, "resized-crop-flip", "")
    assert (len(splits.train), len(splits.val), len(splits.test)) == (15, 0, 15)


def test_a_random_division_when_asked_for(cub):
    splits = read_cub(cub, test_fraction=0.3)
    parts = splits.train, splits.val, splits.test
    assert [part.counts().tolist() for part in parts] == [[6, 6, 6], [1, 1, 1], [3, 3, 3]]
    assert sorted(number for part in parts for number in numbers(part)) == list(range(1, 31))
    assert splits.note == "instead of the official parts: split 60/10/30 per class with split seed 0"


def test_open_data_knows_the_folder(cub):
    for spec in (cub, cub / "CUB_200_2011", f"cub:{cub}", "cub:data/CUB_200_2011"):
        assert open_data(spec).name == "cub"
    few = open_data(cub, classes="laysan albatross,black footed albatross", shots=2)
    assert few.train.counts().tolist() == [2, 2]
    (cub / "CUB_200_2011").rename("elsewhere")
    assert open_data("elsewhere").name == "cub"
    with pytest.raises(
        UserError, match=r"^data holds no CUB-200-2011: images.txt.* or in data/CUB_200_2011$"
    ):
        open_data("cub:data")


def spoil(file: str, old: str, new: str):
    def change(root: Path) -> None:
        text = (root / file).read_text()
        assert old in text
        (root / file).write_text(text.replace(old, new, 1))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda root: (root / "classes.txt").unlink(), "classes.txt is missing; it belongs to CUB-200-2011"),
        (lambda root: (root / "images.txt").write_text(""), "images.txt is empty"),
        (lambda root: (root / "images.txt").write_bytes(b"\xff\xfe"), "images.txt cannot be read as text"),
        (
            spoil("images.txt", "3 001", "three 001"),
            "images.txt, line 3: a number and a value are expected, not 'three",
        ),
        (
            spoil("image_class_labels.txt", "4 1\n", "4\n"),
            "image_class_labels.txt, line 4: a number and a value",
        ),
        (
            spoil("image_class_labels.txt", "4 1\n", "3 1\n"),
            "image_class_labels.txt, line 4: 3 is in line 3 already",
        ),
        (
            spoil("image_class_labels.txt", "4 1\n", "99 1\n"),
            "line 4: image 99 is not in data/CUB_200_2011/images.txt",
        ),
        (
            spoil("image_class_labels.txt", "4 1\n", ""),
            "image_class_labels.txt has no line for image 4 of images.txt",
        ),
        (
            spoil("image_class_labels.txt", "4 1\n", "4 7\n"),
            "line 4: class '7' is not in data/CUB_200_2011/classes.txt",
        ),
        (spoil("train_test_split.txt", "5 1\n", "5 2\n"), "train_test_split.txt, line 5: image 5 has '2'"),
        (
            spoil("bounding_boxes.txt", "6 1.0 2.0 8.0", "6 1.0 2.0"),
            "bounding_boxes.txt, line 6: a number and 4 values",
        ),
        (
            spoil("bounding_boxes.txt", "6 1.0 2.0 8.0", "6 1.0 2.0 0"),
            "bounding_boxes.txt, line 6: .* is no box",
        ),
        (
            spoil("bounding_boxes.txt", "6 1.0 2.0 8.0", "6 x 2.0 8.0"),
            "bounding_boxes.txt, line 6: 'x 2.0 8.0 6.0' is no box",
        ),
        (
            spoil("bounding_boxes.txt", "6 1.0 2.0 8.0", "6 nan 2.0 8.0"),
            "bounding_boxes.txt, line 6: .* is no box",
        ),
        (spoil("classes.txt", "2 002.Laysan", "2 002.Black_footed"), "classes.txt: classes .* are one name"),
        (lambda root: (root / "classes.txt").write_text("1 001.A\n"), "class '2' is not in"),
        (
            spoil("images.txt", "Bird_0007", "Bird_0700"),
            r"images/001.Black_footed_Albatross/Bird_0700.png is missing \(1 of 30 listed images are\)",
        ),
        (
            lambda root: (root / "classes.txt").open("a").write("4 004.Dodo\n"),
            "CUB_200_2011/Dodo has no training images; at least 2",
        ),
    ],
)
def test_what_is_wrong_is_named(cub, change, message):
    change(cub / "CUB_200_2011")
    with pytest.raises(UserError, match=message) as caught:
        read_cub(cub)
    assert str(caught.value).startswith("data/CUB_200_2011/")
    assert "\n" not in str(caught.value)


def test_missing_images_can_be_skipped(cub):
    next((cub / "CUB_200_2011" / "images").glob("*/Bird_0002.png")).unlink()
    images, _, skipped = load_set(read_cub(cub, skip_bad_images=True).test, 8)
    assert (len(images), skipped) == (14, 1)


@pytest.mark.skipif(
    "REFILLED_DATA" not in os.environ, reason="REFILLED_DATA names no folder of real data sets"
)
def test_real_cub():
    root = Path(os.environ["REFILLED_DATA"]) / "CUB_200_2011"
    if not root.is_dir():
        pytest.skip("REFILLED_DATA has no CUB_200_2011")
    splits = open_data(root, val_fraction=0)
    assert (len(splits.classes), len(splits.train), len(splits.test)) == (200, 5994, 5794)
    assert (splits.classes[0], splits.classes[199]) == ("Black_footed_Albatross", "Common_Yellowthroat")
    images, _, skipped = load_set(splits.test.select(torch.arange(0, 5794, 50)), 32)
    assert (images.shape[1:], skipped) == ((3, 32, 32), 0)
    paper = read_cub(root, test_fraction=0.3)
    assert len(paper.test) == pytest.approx(0.3 * 11_788, rel=0.01)


def test_another_division_can_be_asked_for_by_name(cub):
    """Also for images without labels: test images are not among them."""
    asked = {"test_fraction": 0.3, "val_fraction": 0.1, "split_seed": 4}
    found, expected = open_data(cub, **asked), read_cub(cub, **asked)
    ours, theirs = ((splits.train, splits.val, splits.test) for splits in (found, expected))
    assert list(map(numbers, ours)) == list(map(numbers, theirs))
    assert [len(part) for part in ours] == [18, 3, 9]
    others = open_unlabelled(cub, cub, **asked)
    assert [path.name for path in others.pixels.paths] == [p.name for p in found.train.pixels.paths]
    for wrong in ("digits", cub / "CUB_200_2011" / "images"):
        with pytest.raises(UserError, match=f"for CUB-200-2011 and Stanford Dogs.*{wrong} has none"):
            open_data(wrong, test_fraction=0.3)


def test_a_run_is_evaluated_on_its_own_test_images(cub):
    own = {"test_fraction": 0.4, "val_fraction": 0.0, "split_seed": 1}
    result = refilled.distill(
        None, "convnet-1", cub, "student", "run", epochs=1, image_size=8, device="cpu", progress=False, **own
    )
    assert result.test_images == 12
    found = refilled.evaluate("run", cub, device="cpu")
    assert (found.images, found.accuracy) == (12, result.accuracy)
    names = read_cub(cub).classes
    for number, name in enumerate(names):  # a folder has no official lists that it could take the place of
        for image in range(4):
            save_image(Path("others") / name / f"{image}.png", side=8, seed=100 * number + image)
    assert refilled.evaluate("run", "others", device="cpu", part="train").images > 0
