from pathlib import Path

import numpy as np
import pytest
import torch
from image_files import save_image
from scipy.io import savemat

from refilled.data import load_set, open_data, read_dogs
from refilled.data.decode import decode
from refilled.data.dogs import first_box
from refilled.errors import UserError

BREEDS = ("n02085620-Chihuahua", "n02099267-flat-coated_retriever", "n02096177-cairn")
BOX = "<bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox>"


def annotation(*boxes) -> str:
    objects = "".join(f"<object><name>dog</name>\n{BOX.format(*box)}</object>" for box in boxes)
    return f"<annotation><folder>02085620</folder><size><width>9</width></size>{objects}</annotation>\n"


def entries(start: int, count: int) -> dict[str, list]:
    """``count`` images of each breed, as a list has them; the breeds' numbers are not alphabetical."""
    pairs = [(breed, number) for breed in BREEDS for number in range(start, start + count)]
    names = [f"{breed}/{breed[:9]}_{number}" for breed, number in pairs]
    labels = [BREEDS.index(breed) + 1 for breed, _ in pairs]
    return {"file_list": [f"{name}.jpg" for name in names], "annotation_list": names, "labels": labels}


def save_list(file: Path, content: dict[str, list]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for key, values in content.items():
        column = np.empty((len(values), 1), dtype=object if key != "labels" else float)
        column[:, 0] = values
        arrays[key] = column
    savemat(file, arrays)


@pytest.fixture
def dogs(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    root = Path("dogs")
    for name, part in (("train", entries(0, 10)), ("test", entries(10, 4))):
        save_list(root / f"{name}_list.mat", part)
        for index, image in enumerate(part["annotation_list"]):
            save_image(root / "Images" / f"{image}.jpg", side=20 + index % 3, seed=index)
            file = root / "Annotation" / image
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(annotation((index % 4, 3, index % 4 + 8, 9), (0, 0, 20, 20)))
    return root


def names(part) -> list[str]:
    return [path.name for path in part.pixels.paths]


def test_official_parts_and_names(dogs):
    splits = read_dogs(dogs)
    assert splits.classes.names == ("Chihuahua", "flat-coated_retriever", "cairn")
    assert [part.counts().tolist() for part in (splits.train, splits.val, splits.test)] == [
        [9, 9, 9], [1, 1, 1], [4, 4, 4]
    ]  # fmt: skip
    assert names(splits.test) == [f"{breed[:9]}_{number}.jpg" for breed in BREEDS for number in range(10, 14)]
    assert (splits.name, splits.image_size, splits.channels) == ("dogs", None, 3)
    assert splits.augment == "resized-crop-flip"
    assert splits.train.pixels.boxes is None
    assert load_set(splits.test, 10)[0].shape == (12, 3, 10, 10)
    assert names(read_dogs(dogs, split_seed=1).val) != names(splits.val) == names(read_dogs(dogs).val)


def test_first_boxes_when_asked_for(dogs):
    splits = read_dogs(dogs, crop=True, val_fraction=0)
    assert (splits.image_size, splits.augment, splits.note) == (8, "crop-flip", "")
    assert splits.test.pixels.boxes[1] == (1, 3, 9, 9)
    images, _, _ = load_set(splits.test, 8)
    expected = decode(splits.test.pixels.paths[1], 8, box=(1, 3, 9, 9))
    assert torch.equal(images[1], torch.from_numpy(expected.copy()))


def test_a_random_division_and_lists_in_their_folder(dogs):
    (dogs / "lists").mkdir()
    for file in dogs.glob("*.mat"):
        file.rename(dogs / "lists" / file.name)
    splits = read_dogs(dogs, test_fraction=0.5, val_fraction=0)
    assert splits.test.counts().tolist() == [7, 7, 7]
    assert splits.note == "instead of the official parts: split 50/0/50 per class with split seed 0"


def test_open_data_knows_the_folder(dogs):
    for spec in (dogs, "dogs:dogs"):
        assert open_data(spec, classes="cairn,chihuahua").classes.names == ("cairn", "Chihuahua")
    Path("empty").mkdir()
    with pytest.raises(UserError, match=r"^empty holds no Stanford Dogs: Images, Annotation, train_list.mat"):
        open_data("dogs:empty")
    (dogs / "train_list.mat").unlink()
    with pytest.raises(UserError, match=r"^dogs/train_list.mat is missing; .* lists.tar"):
        open_data(dogs)


def changed(**columns) -> dict[str, list]:
    return {**entries(10, 4), **columns}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"labels": [1.0]}, "dogs/test_list.mat has no file_list; it is not a list of Stanford Dogs"),
        (
            changed(labels=[1.0] * 5),
            "as many entries of each kind: there are 12 in file_list, 12 in ann.* 5 in labels",
        ),
        (changed(labels=[1.5] * 12), r"test_list.mat, entry 1: label 1.5 is no whole number"),
        (changed(labels=[np.nan] * 12), r"test_list.mat, entry 1: label nan is no whole number"),
        (
            changed(labels=[1] * 12),
            "dogs: class 1 is both n02085620-Chihuahua and n02099267-flat-coated_retriever",
        ),
        (changed(labels=[1] * 3 + [4] * 9), "dogs: n02085620-Chihuahua is class 1 and class 4 in the lists"),
        (changed(annotation_list=["x"] * 12), r"entry 1: image '.*_10.jpg' and annotation 'x' do not match"),
        (changed(file_list=[""] * 12), "entry 1: image None and annotation"),
        ({key: value[:1] * 2 for key, value in entries(10, 4).items()}, "entry 2: .*_10.jpg is there twice"),
        (entries(9, 4), "n02085620-Chihuahua/n02085620_9.jpg is in both train_list.mat and test_list.mat"),
        (entries(11, 4), r"^dogs/Images/n02085620-Chihuahua/n02085620_14.jpg is missing \(3 of 42 listed"),
    ],
)
def test_lists_that_do_not_fit(dogs, content, message):
    save_list(dogs / "test_list.mat", content)
    with pytest.raises(UserError, match=message) as caught:
        read_dogs(dogs)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"no matrix", bytes(range(256))])
def test_a_damaged_list_is_named(dogs, content):
    (dogs / "train_list.mat").write_bytes(content)
    with pytest.raises(UserError, match=r"^dogs/train_list.mat cannot be read \(.*\); download"):
        read_dogs(dogs)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "is missing; unpack"),
        ("", "cannot be read as XML"),
        ("<annotation><object>", "cannot be read as XML"),
        ("<annotation>&other;</annotation>", "cannot be read as XML: undefined entity"),
        ("<annotation></annotation>", "has no bndbox with the numbers xmin, ymin, xmax, ymax"),
        (annotation(("a", 1, 2, 3)), "has no bndbox with the numbers"),
        (annotation((5, 1, 5, 3)), "the box 5 1 5 3 is empty"),
        (annotation((0, 0, "nan", 3)), "the box 0 0 nan 3 is empty"),
        ('<!DOCTYPE a [<!ENTITY x "1">]>' + annotation(("&x;", 1, 2, 3)), "defines a document type"),
        ('<!DOCTYPE a SYSTEM "file:///etc/passwd"><annotation/>', "defines a document type"),
    ],
)
def test_broken_annotations_are_named(dogs, text, message):
    file = dogs / "Annotation" / BREEDS[0] / "n02085620_3"
    file.unlink() if text is None else file.write_text(text)
    read_dogs(dogs)  # not asked for
    with pytest.raises(UserError, match=message) as caught:
        read_dogs(dogs, crop=True)
    assert str(caught.value).startswith(str(file))


def test_a_document_type_is_refused_in_every_encoding(tmp_path):
    text = '<?xml version="1.0" encoding="utf-16"?><!DOCTYPE a [<!ENTITY x "1">]>' + annotation(
        ("&x;", 1, 2, 3)
    )
    (tmp_path / "wide").write_bytes(text.encode("utf-16"))
    with pytest.raises(UserError, match="defines a document type"):
        first_box(tmp_path / "wide")
