import os
import random
from pathlib import Path

import pytest
from image_files import save_image

from refilled.data import load_set, open_data, read_miniimagenet
from refilled.errors import UserError

CLASSES = {"train": ["n03", "n01", "n02"], "val": ["n00", "n09"], "test": ["n05", "n04"]}


@pytest.fixture
def mini(tmp_path, monkeypatch) -> Path:
    """Makes mini-imagenet with 3, 2 and 2 classes of 10 images; returns it."""
    monkeypatch.chdir(tmp_path)
    root = Path("data/mini-imagenet")
    for part, classes in CLASSES.items():
        lines = [f"{name}{number:04d}.png,{name}" for name in classes for number in range(10)]
        for seed, line in enumerate(lines):
            save_image(root / "images" / line.partition(",")[0], seed=seed)
        (root / f"{part}.csv").write_text("\n".join(["filename,label", *lines]) + "\n")
    return root


def names(part) -> list[str]:
    return [path.name for path in part.pixels.paths]


def test_all_classes_in_the_order_of_the_parts(mini):
    splits = read_miniimagenet(mini)
    assert splits.classes.names == ("n01", "n02", "n03", "n00", "n09", "n04", "n05")
    parts = splits.train, splits.val, splits.test
    assert [part.counts().tolist() for part in parts] == [[8] * 7, [1] * 7, [1] * 7]
    assert len({name for part in parts for name in names(part)}) == 70
    for part in parts:
        assert all(name.startswith(part.classes[label]) for name, label in zip(names(part), part.labels))
    assert (splits.name, splits.image_size, splits.augment) == ("miniimagenet", 12, "crop-flip")
    assert splits.note == (
        "the parts of miniImageNet are classes, not images: split 80/10/10 per class with split seed 0"
    )
    assert load_set(splits.val, 12)[0].shape == (7, 3, 12, 12)


@pytest.mark.parametrize(("part", "classes"), [("train", "0:3"), ("val", "3:5"), ("test", "5:7")])
def test_a_part_is_a_range_of_classes_with_the_same_images(mini, part, classes):
    chosen, ranged = read_miniimagenet(mini, part=part), open_data(mini, classes=classes)
    assert chosen.classes.names == ranged.classes.names == tuple(sorted(CLASSES[part]))
    for one, other in zip((chosen.train, chosen.val, chosen.test), (ranged.train, ranged.val, ranged.test)):
        assert names(one) == names(other)
        assert one.labels.tolist() == other.labels.tolist()


def test_order_of_lines_does_not_matter_and_seeds_do(mini):
    expected = names(read_miniimagenet(mini).test)
    assert expected != names(read_miniimagenet(mini, split_seed=1).test)
    for file in mini.glob("*.csv"):
        header, *lines = file.read_text().splitlines()
        random.Random(0).shuffle(lines)
        file.write_text("\r\n".join([header, *lines]))
    assert names(read_miniimagenet(mini).test) == expected
    splits = read_miniimagenet(mini, val_fraction=0, test_fraction=0.5)
    assert (len(splits.train), len(splits.val), len(splits.test)) == (35, 0, 35)


def test_open_data_knows_the_folder(mini):
    for spec in (mini, mini.parent, f"miniimagenet:{mini}", "miniimagenet:data"):
        assert open_data(spec).name == "miniimagenet"
    mini.rename("elsewhere")
    assert open_data("elsewhere").name == "miniimagenet"
    with pytest.raises(UserError, match=r"^data holds no miniImageNet: images.* or in data/mini-imagenet$"):
        open_data("miniimagenet:data")


def test_several_data_sets_in_one_folder(mini):
    (mini.parent / "CUB_200_2011").mkdir()
    with pytest.raises(
        UserError, match=r"^data holds CUB-200-2011 and miniImageNet; .*: cub:data or mini.*:data$"
    ):
        open_data("data")
    assert open_data("miniimagenet:data").name == "miniimagenet"


def spoil(old: str, new: str):
    def change(root: Path) -> None:
        text = (root / "val.csv").read_text()
        assert old in text
        (root / "val.csv").write_text(text.replace(old, new, 1))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda root: (root / "val.csv").unlink(), "val.csv is missing; it belongs to miniImageNet"),
        (
            lambda root: (root / "val.csv").write_text(""),
            "val.csv, line 1: the columns filename,label are expected",
        ),
        (lambda root: (root / "val.csv").write_text("filename,label\n"), "val.csv lists no images"),
        (
            spoil("filename,label\n", ""),
            "val.csv, line 1: the columns filename,label .* not 'n000000.png,n00'",
        ),
        (
            spoil("n000002.png,n00", "n000002.png"),
            "val.csv, line 4: a file name and a class .* not 'n000002.png'",
        ),
        (spoil("n000002.png,n00", ",n00"), "val.csv, line 4: a file name and a class"),
        (spoil("n000002.png,n00", "n000001.png,n00"), "val.csv, line 4: n000001.png is in line 3 already"),
        (spoil("n000002.png,n00", "n000002.png,n01"), "class n01 is in .*train.csv and in .*val.csv"),
        (spoil("n000002.png,n00", "n000002.png,n77"), "mini-imagenet/n77 has 1 image; at least 2"),
        (spoil("n000002.png", "n00x.png"), r"images/n00x.png is missing \(1 of 70 listed images are\)"),
    ],
)
def test_what_is_wrong_is_named(mini, change, message):
    change(mini)
    with pytest.raises(UserError, match=message) as caught:
        read_miniimagenet(mini)
    assert "\n" not in str(caught.value)


def test_unknown_part_and_images_to_skip(mini):
    with pytest.raises(UserError, match="unknown part of miniImageNet 'trian'; did you mean 'train'"):
        read_miniimagenet(mini, part="trian")
    splits = read_miniimagenet(mini)
    splits.test.pixels.paths[0].unlink()
    assert load_set(read_miniimagenet(mini, skip_bad_images=True).test, 12)[2] == 1


@pytest.mark.skipif(
    "REFILLED_DATA" not in os.environ, reason="REFILLED_DATA names no folder of real data sets"
)
def test_real_miniimagenet():
    root = Path(os.environ["REFILLED_DATA"]) / "mini-imagenet"
    if not root.is_dir():
        pytest.skip("REFILLED_DATA has no mini-imagenet")
    splits = open_data(root)
    assert splits.train.counts().tolist() == [480] * 100
    assert splits.test.counts().tolist() == [60] * 100
    sizes = [len(read_miniimagenet(root, part=part).classes) for part in ("train", "val", "test")]
    assert sizes == [64, 16, 20]
    few = open_data(root, classes="80:100", shots=5)
    assert load_set(few.train, 32)[0].shape == (100, 3, 32, 32)
