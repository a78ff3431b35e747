"""miniImageNet in the layout of Ravi and Larochelle ("Optimization as a model for few-shot learning", 2017).

The folder has ``images/`` and ``train.csv``, ``val.csv`` and ``test.csv`` with columns filename and label.
These three are parts of the CLASSES (64, 16 and 20 of them), not of the images: no class is in two files.
"""

import csv
from pathlib import Path

import torch

from refilled.data.images import ImageSet, Splits, check_trainable
from refilled.data.listed import check_present, listed_splits, named_classes, numbered_lines
from refilled.data.pixels import FilePixels
from refilled.data.splits import describe_parts, three_parts
from refilled.errors import UserError, unknown
from refilled.labels import LabelSpace

FOLDERS = ("mini-imagenet", "miniimagenet", "mini_imagenet", "miniImageNet")
PARTS = ("train", "val", "test")
_DATASET = "miniImageNet"
_COLUMNS = ["filename", "label"]


def find_miniimagenet(path: Path) -> Path | None:
    """The folder with miniImageNet's files: ``path`` or one with its name within it."""
    for folder in (path, *(path / name for name in FOLDERS)):
        files = [part for part in PARTS if (folder / f"{part}.csv").is_file()]
        if (len(files) >= 2 and (folder / "images").is_dir()) or (files and folder.name in FOLDERS):
            return folder
    return None


def read_miniimagenet(
    path: str | Path,
    *,
    part: str = "all",
    split_seed: int = 0,
    val_fraction: float = 0.1,
    test_fraction: float = 0.1,
    skip_bad_images: bool = False,
) -> Splits:
    """miniImageNet, each class divided into images for training, validation and testing.

    The data set's own parts hold different classes, so that none of them can test what was learnt on
    another; ``part`` chooses whose classes are meant, and the images of each are divided at random.
    With ``all`` there are 100 classes: the 64 of train.csv, the 16 of val.csv, the 20 of test.csv, so
    that ranges ``0:64``, ``64:80`` and ``80:100`` choose a part as well, with the same images in it.

    Classes and files are sorted by name within a part, so that the order of lines does not matter.
    Classes are called as in the files: WordNet's numbers such as ``n01532829``.

    Args:
        path: the folder ``mini-imagenet``, or the one around it.
        part: whose classes: ``train``, ``val``, ``test`` or ``all``.
        split_seed: which images are held out.
        val_fraction: share of each class for validation; 0 for none.
        test_fraction: share of each class for testing.
        skip_bad_images: leave out images that are missing or cannot be read, when they are loaded.

    Returns:
        Parts whose images are files, not yet decoded: channels 3; ``image_size`` is the side when the
        images (judged by up to 256 of them) are squares of one size.
    """
    folder = find_miniimagenet(Path(path))
    if folder is None:
        raise UserError(
            f"{path} holds no {_DATASET}: images, train.csv, val.csv and test.csv are expected in it "
            f"or in {Path(path) / FOLDERS[0]}"
        )
    if part not in (*PARTS, "all"):
        raise unknown(f"part of {_DATASET}", part, (*PARTS, "all"))
    files = [folder / f"{name}.csv" for name in PARTS]
    listing, file_of = _read_classes(files)
    classes = named_classes(list(listing), folder)
    paths = [folder / "images" / name for names in listing.values() for name in names]
    if not skip_bad_images:
        check_present(paths, _DATASET)
    labels = [label for label, names in enumerate(listing.values()) for _ in names]
    pixels = FilePixels(paths, skip_bad_images=skip_bad_images)
    whole = ImageSet(pixels, torch.tensor(labels, dtype=torch.int64), classes)
    check_trainable(whole, classes, str(folder))
    rows = three_parts(whole.labels, val_fraction, test_fraction, split_seed)
    made = describe_parts(val_fraction, test_fraction, split_seed)
    note = f"the parts of {_DATASET} are classes, not images: {made}"
    splits = listed_splits("miniimagenet", *(whole.select(chosen) for chosen in rows), note=note)
    if part == "all":
        return splits
    return splits.only(LabelSpace(name for name in classes if file_of[name].stem == part))


def _read_classes(files: list[Path]) -> tuple[dict[str, list[str]], dict[str, Path]]:
    """Sorted file names of each class, and where it is listed; the classes of each file sorted too."""
    listing: dict[str, list[str]] = {}
    file_of: dict[str, Path] = {}
    for file in files:
        found = _read_csv(file)
        for name in sorted(found):
            if name in file_of:
                raise UserError(f"class {name} is in {file_of[name]} and in {file}; no class is in two parts")
            file_of[name] = file
            listing[name] = sorted(found[name])
    return listing, file_of


def _read_csv(file: Path) -> dict[str, list[str]]:
    """File names of each class."""
    found: dict[str, list[str]] = {}
    line_of: dict[str, int] = {}
    lines = numbered_lines(file, _DATASET)
    header = next(lines, (1, ""))[1]
    if [name.strip() for name in header.split(",")] != _COLUMNS:
        raise UserError(f"{file}, line 1: the columns {','.join(_COLUMNS)} are expected, not {header[:60]!r}")
    for number, line in lines:
        fields = [field.strip() for field in next(csv.reader([line]))]
        if len(fields) != 2 or not all(fields):
            raise UserError(f"{file}, line {number}: a file name and a class are expected, not {line[:60]!r}")
        name, label = fields
        if name in line_of:
            raise UserError(f"{file}, line {number}: {name} is in line {line_of[name]} already")
        line_of[name] = number
        found.setdefault(label, []).append(name)
    if not found:
        raise UserError(f"{file} lists no images; download {_DATASET} again")
    return found
