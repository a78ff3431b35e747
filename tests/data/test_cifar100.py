import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from refilled.data import channel_statistics, load_set, open_data, order_classes, read_cifar100
from refilled.errors import UserError

NAMES = [f"class_{index:02d}" for index in range(4)]


def contents(per_class: int = 10) -> dict[str, dict]:
    def part(seed: int) -> dict:
        labels = [index % len(NAMES) for index in range(per_class * len(NAMES))]
        data = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072), dtype=np.uint8)
        return {
            "data": data,
            "fine_labels": labels,
            "coarse_labels": labels,
            "filenames": ["x"] * len(labels),
        }

    return {"meta": {"fine_label_names": NAMES}, "train": part(0), "test": part(1)}


def python2_pickle(value) -> bytes:
    """What Python 2's cPickle wrote with protocol 2: strings of bytes, and numpy's old module names."""

    def text(string: bytes) -> bytes:
        return b"T" + struct.pack("<I", len(string)) + string

    def dump(item) -> bytes:
        if isinstance(item, dict):
            return b"}(" + b"".join(dump(key) + dump(entry) for key, entry in item.items()) + b"u"
        if isinstance(item, list):
            return b"](" + b"".join(map(dump, item)) + b"e"
        if isinstance(item, str):
            return text(item.encode())
        if isinstance(item, int):
            return b"J" + struct.pack("<i", item)
        rows, columns = item.shape
        made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85" + text(b"b") + b"tR"
        dtype = b"cnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR(K\x03" + text(b"|")
        dtype += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        state = (
            b"(K\x01" + dump(rows) + dump(columns) + b"\x86" + dtype + b"\x89" + text(item.tobytes()) + b"tb"
        )
        return made + state

    return b"\x80\x02" + dump(value) + b"."


def with_bytes(item):
    """The same with bytes for strings, as a file that was read with encoding="bytes" and saved again."""
    if isinstance(item, dict):
        return {key.encode(): with_bytes(entry) for key, entry in item.items()}
    if isinstance(item, list):
        return [with_bytes(entry) for entry in item]
    return item.encode() if isinstance(item, str) else item


WRITERS = {
    "python2": python2_pickle,
    **{f"python3-protocol{n}": lambda value, n=n: pickle.dumps(value, protocol=n) for n in (2, 3, 4, 5)},
    "resaved": lambda value: pickle.dumps(with_bytes(value), protocol=2),
}


def write(folder: Path, writer=python2_pickle, parts=None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in (parts or contents()).items():
        (folder / name).write_bytes(writer(value))
    return folder


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS.keys())
def test_files_of_every_age_are_read(tmp_path, writer):
    write(tmp_path / "cifar-100-python", writer)
    splits = read_cifar100(tmp_path)
    assert splits.classes.names == tuple(NAMES)
    assert (len(splits.train), len(splits.val), len(splits.test)) == (36, 4, 40)
    assert (splits.image_size, splits.channels, splits.augment) == (32, 3, "crop-flip")
    expected = contents()["test"]
    images, labels, skipped = load_set(splits.test, 32)
    assert np.array_equal(images.numpy().reshape(40, 3072), expected["data"])
    assert (labels.tolist(), skipped) == (expected["fine_labels"], 0)


def test_folder_itself_and_detection(tmp_path):
    folder = write(tmp_path / "cifar-100-python")
    for spec in (str(tmp_path), str(folder), f"cifar100:{tmp_path}", folder):
        assert open_data(spec).name == "cifar100"
    elsewhere = write(tmp_path / "elsewhere")
    assert open_data(elsewhere).name == "cifar100"


def test_validation_is_stratified_seeded_and_optional(tmp_path):
    folder = write(tmp_path / "c", parts=contents(per_class=20))
    splits = read_cifar100(folder)
    assert splits.val.counts().tolist() == [2] * 4
    assert splits.note == "validation is 10% of each training class, held out with split seed 0"
    images = [load_set(read_cifar100(folder, split_seed=seed).val, None)[0] for seed in (0, 0, 1)]
    assert torch.equal(images[0], images[1])
    assert not torch.equal(images[0], images[2])
    whole = read_cifar100(folder, val_fraction=0)
    assert (len(whole.train), len(whole.val), whole.note) == (80, 0, "")


class Attack:
    def __reduce__(self):
        return os.system, ("touch attacked",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_runs_code_is_refused(tmp_path, monkeypatch, protocol):
    monkeypatch.chdir(tmp_path)
    write(Path("c"))
    Path("c/train").write_bytes(pickle.dumps({"data": Attack()}, protocol=protocol))
    with pytest.raises(UserError, match=r"^c/train asks for (posix|nt)\.system, .* it was not run"):
        read_cifar100("c")
    assert not Path("attacked").exists()


@pytest.mark.parametrize(
    "name", ["builtins\neval", "numpy\nload", "numpy.core.multiarray\nscalar", "os\nsystem"]
)
def test_only_the_names_of_cifar_are_known(tmp_path, name):
    folder = write(tmp_path / "c")
    (folder / "meta").write_bytes(b"\x80\x02c" + name.encode() + b"\n.")
    with pytest.raises(UserError, match=name.replace("\n", r"\.")):
        read_cifar100(folder)


def test_other_encodings_are_not_run(tmp_path):
    folder = write(tmp_path / "c")
    (folder / "meta").write_bytes(b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R.")
    with pytest.raises(UserError, match="encoding 'hex'"):
        read_cifar100(folder)


def spoiled(change) -> dict[str, dict]:
    parts = contents()
    change(parts)
    return parts


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.pop("test"), "c/test is missing"),
        (lambda p: p.pop("meta"), "c/meta is missing"),
        (lambda p: p["train"].pop("fine_labels"), r"c/train has no fine_labels \(CIFAR-10 has none\)"),
        (
            lambda p: p["train"].update(data=p["train"]["data"][:7]),
            r"data must be uint8 \[40, 3072\].* \[7, 3072\]",
        ),
        (lambda p: p["train"].update(data=p["train"]["data"][:, :9]), r"not uint8 \[40, 9\]"),
        (lambda p: p["train"].update(data=["x"]), "data must be uint8 .* not list"),
        (lambda p: p["train"].update(data="x"), "data is a bytes, not a list"),
        (
            lambda p: p["train"].update(fine_labels=[9] * 40),
            "labels from 9 to 9 do not fit the 4 names in c/meta",
        ),
        (lambda p: p["train"].update(fine_labels=["x"] * 40), "fine_labels are not numbers"),
        (lambda p: p.update(train=["x"]), "it holds a list"),
    ],
)
def test_wrong_contents_are_named(tmp_path, monkeypatch, change, message):
    monkeypatch.chdir(tmp_path)
    write(Path("c"), parts=spoiled(change))
    with pytest.raises(UserError, match=message):
        read_cifar100("c")


@pytest.mark.parametrize("keep", [0, 1, 100, 5000])
def test_truncated_files_are_named(tmp_path, monkeypatch, keep):
    monkeypatch.chdir(tmp_path)
    write(Path("c"))
    Path("c/train").write_bytes(Path("c/train").read_bytes()[:keep])
    with pytest.raises(UserError, match=r"^c/train cannot be read .* download CIFAR-100 again$"):
        read_cifar100("c")


def test_no_cifar_at_all(tmp_path):
    with pytest.raises(UserError, match="holds no CIFAR-100"):
        read_cifar100(tmp_path)


@pytest.mark.skipif(
    "REFILLED_DATA" not in os.environ, reason="REFILLED_DATA names no folder of real data sets"
)
def test_real_cifar100():
    root = Path(os.environ["REFILLED_DATA"])
    if not (root / "cifar-100-python").is_dir():
        pytest.skip("REFILLED_DATA has no cifar-100-python")
    splits = open_data(root / "cifar-100-python", val_fraction=0)
    assert (len(splits.train), len(splits.val), len(splits.test)) == (50_000, 0, 10_000)
    assert splits.train.counts().tolist() == [500] * 100
    images, _, _ = load_set(splits.train, 32)
    assert channel_statistics(images)[0] == pytest.approx((0.50708, 0.48655, 0.44092), abs=1e-4)
    order = order_classes("cifar-fs", splits.classes)
    assert sorted(order) == sorted(splits.classes)
    half = open_data(root / "cifar-100-python", classes="50:100", class_order="cifar-fs", shots=5)
    assert half.classes.names == order.names[50:]
    assert len(half.train) == 250
    assert len(half.test) == 5000
