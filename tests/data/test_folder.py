import os
from pathlib import Path

import pytest
import torch
from image_files import save_image

from refilled.data import load_set, read_folder
from refilled.data.pixels import FilePixels
from refilled.errors import UserError


def counts(splits) -> list[list[int]]:
    return [part.counts().tolist() for part in (splits.train, splits.val, splits.test)]


def names(part) -> list[str]:
    assert isinstance(part.pixels, FilePixels)
    return [path.as_posix() for path in part.pixels.paths]


def test_folder_without_parts_is_split_and_says_so(photos):
    splits = read_folder(photos({"dog": 20, "cat": 10}))
    assert splits.classes.names == ("cat", "dog")
    assert counts(splits) == [[7, 14], [1, 2], [2, 4]]
    every = names(splits.train) + names(splits.val) + names(splits.test)
    assert len(set(every)) == 30
    assert splits.note == "photos has no train/test folders: split 70/10/20 per class with split seed 0"
    assert (splits.name, splits.image_size, splits.channels, splits.augment) == ("photos", 12, 3, "crop-flip")
    for part in (splits.train, splits.val, splits.test):
        labels = part.labels.tolist()
        assert all(f"/{part.classes[label]}/" in name for name, label in zip(names(part), labels))


def test_split_follows_the_seed_alone(photos):
    root = photos({"dog": 20, "cat": 10})
    assert names(read_folder(root).test) == names(read_folder(str(root)).test)
    assert names(read_folder(root).test) != names(read_folder(root, split_seed=1).test)


def test_order_on_disk_does_not_matter(photos, monkeypatch):
    root = photos({"dog": 8, "cat": 8, "cat/inner": 3, "owl": 6})
    expected = read_folder(root)
    real = os.scandir

    class Backwards:
        def __init__(self, folder):
            with real(folder) as entries:
                self.entries = sorted(entries, key=lambda entry: entry.name, reverse=True)

        def __enter__(self):
            return iter(self.entries)

        def __exit__(self, *_):
            return None

    monkeypatch.setattr(os, "scandir", Backwards)
    again = read_folder(root)
    for part in ("train", "val", "test"):
        ours, theirs = getattr(again, part), getattr(expected, part)
        assert names(ours) == names(theirs)
        assert torch.equal(ours.labels, theirs.labels)


def test_small_classes_keep_a_training_image(photos):
    splits = read_folder(photos({"cat": 2, "dog": 3, "owl": 4}))
    assert splits.train.counts().tolist() == [1, 2, 3]
    assert splits.test.counts().tolist() == [1, 1, 1]
    assert len(splits.val) == 0


def test_without_validation(photos):
    splits = read_folder(photos({"cat": 10, "dog": 10}), val_fraction=0)
    assert (len(splits.train), len(splits.val), len(splits.test)) == (16, 0, 4)
    assert "split 80/0/20" in splits.note


def test_given_parts_are_taken_as_they_are(photos):
    root = photos({"train/cat": 6, "train/dog": 6, "valid/cat": 2, "valid/dog": 1, "test/dog": 3})
    splits = read_folder(root)
    assert counts(splits) == [[6, 6], [2, 1], [0, 3]]
    assert splits.note == ""


def test_val_serves_as_test_where_there_is_none(photos):
    splits = read_folder(photos({"train/cat": 10, "train/dog": 4, "val/cat": 3, "val/dog": 2}))
    assert counts(splits) == [[9, 4], [1, 0], [3, 2]]
    assert splits.note == (
        "photos has no test folder: val is used for testing; "
        "validation is 10% of each class of train, with split seed 0"
    )
    without = read_folder("photos", val_fraction=0)
    assert len(without.val) == 0
    assert without.note.endswith("there is no validation")


def test_validation_is_made_where_only_train_and_test_are_given(photos):
    splits = read_folder(photos({"train/cat": 10, "train/dog": 10, "test/cat": 3, "test/dog": 2}))
    assert (len(splits.train), len(splits.val), len(splits.test)) == (18, 2, 5)
    assert "no val folder" in splits.note


def test_both_parts_are_made_of_train_alone(photos):
    splits = read_folder(photos({"train/cat": 10, "train/dog": 10}))
    assert (len(splits.train), len(splits.val), len(splits.test)) == (14, 2, 4)
    assert splits.note == "photos has no val or test folder: split 70/10/20 per class with split seed 0"


def test_class_names_match_across_parts_whatever_their_case(photos):
    splits = read_folder(photos({"train/Grey_Owl": 6, "train/cat": 6, "test/grey owl": 2}))
    assert splits.test.counts().tolist() == [2, 0]


def test_a_class_may_be_called_train(photos):
    assert read_folder(photos({"train": 4, "bus": 4})).classes.names == ("bus", "train")


def test_what_is_read_and_what_is_not(photos):
    root = photos({"cat": 3, "dog": 3, "dog/young/very": 2, ".cache": 3, "__MACOSX": 2, "cat/.thumbs": 2})
    for name in ("cat/Thumbs.db", "cat/notes.txt", "cat/.DS_Store", "cat/._0.png", "readme.md"):
        (root / name).write_text("x")
    save_image(root / "cat" / "LOUD.JPG")
    save_image(root / "cat" / "b.JpEg")
    splits = read_folder(root)
    total = sum(part.counts() for part in (splits.train, splits.val, splits.test))
    assert total.tolist() == [5, 5]
    assert splits.classes.names == ("cat", "dog")


def test_what_lies_beside_is_mentioned(photos):
    root = photos({"train/cat": 6, "train/dog": 6, "test/cat": 1, "val/cat": 1, "unlabelled": 2})
    save_image(root / "loose.png")
    assert read_folder(root).note == "not used: unlabelled, 1 images outside class folders"


def test_links_that_lead_back_end(photos):
    root = photos({"cat": 3, "dog": 3})
    (root / "cat" / "loop").symlink_to("..", target_is_directory=True)
    splits = read_folder(root)
    assert splits.classes.names == ("cat", "dog")


def test_photographs_of_many_sizes(photos):
    root = photos({"cat": 4, "dog": 4})
    save_image(root / "cat" / "large.png", side=40)
    splits = read_folder(root)
    assert splits.image_size is None
    assert splits.augment == "resized-crop-flip"
    images, labels, skipped = load_set(splits.train, 10)
    assert (images.shape, len(labels), skipped) == ((len(splits.train), 3, 10, 10), len(splits.train), 0)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({}, "photos is empty; put images in photos/CLASS/…"),
        ({"": 3}, "photos holds images but no class folders; put them in photos/CLASS/…"),
        ({"train": 3}, "photos/train holds images but no class folders; put them in photos/train/CLASS/…"),
        ({"cat": 3, "dog": 0}, "photos/dog has no images; add some or remove the folder"),
        ({"cat": 0, "dog": 0}, "photos has folders but no images in them"),
        ({"cat": 3}, "photos has only one class (cat); at least 2 class folders are needed"),
        ({"cat": 1, "dog": 3}, "photos/cat has 1 image; at least 2 are needed to compare"),
        ({"train/cat": 1, "train/dog": 3}, "photos/train/cat has 1 image; at least 2 are needed to compare"),
        (
            {"train/cat": 3, "train/dog": 3, "test/owl": 1, "test/ape": 1},
            "photos/test has classes that photos/train does not have: ape, owl;",
        ),
        ({"sea lion": 3, "Sea_Lion": 3}, "photos: classes 'Sea_Lion' and 'sea lion' are one name"),
        ({"val/cat": 3, "test/cat": 3}, "photos has test and val but no train;"),
        ({"train/cat": 3, "val/cat": 3, "valid/cat": 3}, "photos has both val and valid; keep one of them"),
    ],
)
def test_errors_name_the_folder_and_what_to_do(photos, layout, message):
    with pytest.raises(UserError) as caught:
        read_folder(photos(layout))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_no_folder_at_all(photos, tmp_path):
    with pytest.raises(UserError, match=r"^nowhere does not exist"):
        read_folder("nowhere")
    Path("archive.zip").write_text("x")
    with pytest.raises(UserError, match=r"^archive.zip is a file, not a folder"):
        read_folder("archive.zip")


def test_bad_images_reach_the_person(photos):
    root = photos({"cat": 4, "dog": 4})
    (root / "cat" / "0.png").write_text("no image")
    splits = read_folder(root, val_fraction=0, test_fraction=0)
    with pytest.raises(UserError, match=r"cannot read photos/cat/0.png: not an image.*--skip-bad-images"):
        load_set(splits.train, 8)
    splits = read_folder(root, val_fraction=0, test_fraction=0, skip_bad_images=True)
    images, labels, skipped = load_set(splits.train, 8)
    assert (len(images), labels.tolist(), skipped) == (7, [0, 0, 0, 1, 1, 1, 1], 1)


def test_the_parent_of_data_sets_is_not_one(photos):
    photos({"birds/cat": 3, "birds/dog": 3, "others/cat": 3})
    with pytest.raises(UserError, match=r"hold no images themselves.*such as photos/birds\?"):
        read_folder(Path("photos"))


def test_images_deeper_down_belong_to_their_class(photos):
    photos({"cat": 2, "cat/kittens": 3, "dog": 3})
    assert read_folder(Path("photos"), val_fraction=0, test_fraction=0.2).classes.names == ("cat", "dog")
