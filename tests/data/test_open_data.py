import subprocess
import sys
from pathlib import Path

import pytest
import torch

from refilled.data import load_set, open_data, order_classes, read_digits
from refilled.data.images import ImageSet
from refilled.data.pixels import TensorPixels
from refilled.errors import UserError
from refilled.labels import LabelSpace


def test_digits():
    splits = open_data("digits")
    assert splits.classes.names == tuple("0123456789")
    assert (splits.name, splits.image_size, splits.channels, splits.augment) == ("digits", 8, 1, "crop")
    sizes = [len(part) for part in (splits.train, splits.val, splits.test)]
    assert sum(sizes) == 1797
    assert [round(size / 1797, 2) for size in sizes] == [0.7, 0.1, 0.2]
    images, labels, _ = load_set(splits.train, 8)
    assert (images.dtype, images.shape[1:], int(images.max()), int(images.min())) == (
        torch.uint8,
        (1, 8, 8),
        255,
        0,
    )
    assert len(labels) == len(images)
    assert splits.note == "digits has no parts of its own: split 70/10/20 per class with split seed 0"


def test_digits_are_scikit_learns_and_split_by_seed():
    from sklearn.datasets import load_digits

    whole = read_digits(val_fraction=0)
    assert len(whole.val) == 0
    pixels = torch.cat([load_set(part, 8)[0] for part in (whole.train, whole.test)])
    assert float(pixels.float().mean()) == pytest.approx(load_digits().images.mean() * 255 / 16, abs=0.1)
    tests = [load_set(read_digits(split_seed=seed).test, 8)[0] for seed in (0, 0, 1)]
    assert torch.equal(tests[0], tests[1])
    assert not torch.equal(tests[0], tests[2][: len(tests[0])])


def test_classes_are_a_range_names_or_a_space():
    assert open_data("digits", classes="2:5").classes.names == ("2", "3", "4")
    assert open_data("digits", classes="7,1").classes.names == ("7", "1")
    space = LabelSpace(["3", "9"])
    splits = open_data("digits", classes=space)
    assert splits.classes == space
    assert splits.test.counts().sum() == len(splits.test)
    whole = open_data("digits")
    assert splits.train.counts().tolist() == whole.train.counts()[[3, 9]].tolist()
    for nothing in ("", " , ", LabelSpace([])):
        with pytest.raises(UserError, match="no classes are named"):
            open_data("digits", classes=nothing)
    with pytest.raises(UserError, match="'1' and '1' are one name"):
        open_data("digits", classes="1,1")
    with pytest.raises(UserError, match="unknown class 'eleven'"):
        open_data("digits", classes="eleven")


def test_an_order_decides_what_a_range_means(tmp_path):
    order = tmp_path / "order.txt"
    order.write_text("9\n8\n\n7\n0\n", encoding="utf-8")
    assert open_data("digits", class_order=order).classes.names == ("9", "8", "7", "0")
    splits = open_data("digits", class_order=str(order), classes="1:3")
    assert splits.classes.names == ("8", "7")
    eights = load_set(splits.test.select(torch.nonzero(splits.test.labels == 0).squeeze(1)), 8)[0]
    whole = open_data("digits").test
    assert torch.equal(eights, load_set(whole.select(torch.nonzero(whole.labels == 8).squeeze(1)), 8)[0])


def test_shots_are_taken_of_train_alone_after_validation():
    few, whole = open_data("digits", shots=3), open_data("digits")
    assert few.train.counts().tolist() == [3] * 10
    assert torch.equal(few.val.labels, whole.val.labels)
    assert torch.equal(few.test.labels, whole.test.labels)
    images = [load_set(open_data("digits", shots=3, shots_seed=seed).train, 8)[0] for seed in (0, 0, 1)]
    assert torch.equal(images[0], images[1])
    assert not torch.equal(images[0], images[2])
    with pytest.raises(UserError, match=r"class '\d' has 1\d\d training images and 500 shots"):
        open_data("digits", shots=500)


def test_folders_are_opened_and_nothing_is_decoded(photos, monkeypatch):
    root = photos({"cat": 10, "dog": 10, "owl": 10})
    monkeypatch.setattr("refilled.data.pixels.decode", None)
    for spec in (root, str(root), "folder:photos"):
        assert open_data(spec, classes="owl,cat").classes.names == ("owl", "cat")
    assert open_data(root, val_fraction=0, shots=2).train.counts().tolist() == [2, 2, 2]


def test_a_folder_called_digits_can_be_named(photos):
    photos({"cat": 4, "dog": 4}).rename("digits")
    assert open_data("digits").channels == 1
    for spec in ("./digits", "folder:digits"):
        assert open_data(spec).channels == (1 if spec == "digits" else 3)


def test_bad_images_can_be_skipped(photos):
    root = photos({"cat": 4, "dog": 4})
    for path in root.glob("cat/*"):
        path.write_bytes(b"")
    splits = open_data(root, skip_bad_images=True)
    _, labels, skipped = load_set(splits.train, 8)
    assert (set(labels.tolist()), skipped) == ({1}, 3)


@pytest.mark.parametrize("spec", ["digit", "Digits", "nowhere", "folder:nowhere", "cifar10:nowhere", "a/b"])
def test_what_is_not_there(spec, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UserError, match=r"^no such folder: .* \(give \"digits\", a folder of images"
    ) as caught:
        open_data(spec)
    assert ("did you mean 'digits'?" in str(caught.value)) == (spec.lower().startswith("digit"))


def test_a_file_is_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("photos.zip").write_text("x")
    with pytest.raises(UserError, match=r"^photos.zip is a file, not a folder"):
        open_data("photos.zip")


class TestClassOrder:
    def test_default_is_the_data_s_own(self):
        classes = LabelSpace(["b", "a"])
        assert order_classes("default", classes) is classes

    def test_cifar_fs_orders_a_hundred_classes(self):
        lines = Path(order_classes.__code__.co_filename).with_name("cifar_fs_order.txt").read_text().split()
        shouted = LabelSpace(sorted(name.upper().replace("_", " ") for name in lines))
        ordered = order_classes("cifar-fs", shouted)
        assert len(ordered) == len(lines) == 100
        assert ordered[1] == "AQUARIUM FISH"  # the data's spelling
        assert [lines[index] for index in (0, 63, 64, 79, 80, 99)] == [
            "apple", "wolf", "beaver", "tractor", "baby", "worm"
        ]  # fmt: skip
        with pytest.raises(UserError, match="cifar-fs is for CIFAR-100; this data has no class 'apple'"):
            order_classes("cifar-fs", LabelSpace(["cat", "dog"]))

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("cat\nbird\n", r"order.txt, line 2: unknown class 'bird'"),
            ("cat\nCAT\n", r"order.txt, line 2: 'CAT' is in line 1 already"),
            ("\n \n", r"order.txt is empty"),
        ],
    )
    def test_files_that_do_not_fit(self, tmp_path, text, message):
        file = tmp_path / "order.txt"
        file.write_text(text)
        with pytest.raises(UserError, match=message):
            order_classes(file, LabelSpace(["cat", "dog"]))

    def test_neither_a_name_nor_a_file(self, tmp_path):
        with pytest.raises(
            UserError, match="class order 'cifar' is neither 'default', 'cifar-fs' nor a file"
        ):
            order_classes("cifar", LabelSpace(["cat", "dog"]))
        binary = tmp_path / "binary"
        binary.write_bytes(b"\xff\xfe\x00")
        with pytest.raises(UserError, match="cannot be read as text"):
            order_classes(binary, LabelSpace(["cat", "dog"]))


def test_only_relabels_and_refuses_one_class_under_two_names():
    pixels = TensorPixels(torch.arange(6, dtype=torch.uint8)[:, None, None, None])
    images = ImageSet(pixels, torch.tensor([0, 1, 2, 0, 1, 2]), LabelSpace(["tench, Tinca", "cat", "dog"]))
    fewer = images.only(LabelSpace(["dog", "tench"]))
    assert fewer.labels.tolist() == [1, 0, 1, 0]
    assert load_set(fewer, 1)[0].flatten().tolist() == [0, 2, 3, 5]
    with pytest.raises(UserError, match="'tench' and 'Tinca' are one class"):
        images.only(LabelSpace(["tench", "Tinca"]))


def test_importing_the_package_does_not_import_scikit_learn():
    code = "import sys, refilled.data; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
