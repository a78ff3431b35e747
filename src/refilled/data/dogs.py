"""Stanford Dogs (Khosla et al., 2011) in the layout of its official archives.

The folder has ``Images/n02085620-Chihuahua/*.jpg``, ``Annotation/n02085620-Chihuahua/`` with an XML file
per image, and ``train_list.mat`` and ``test_list.mat`` (also within ``lists/``).
"""

from pathlib import Path
from typing import Any
from xml.parsers import expat

import numpy as np
import torch

from refilled.data.decode import Box
from refilled.data.images import ImageSet, Splits
from refilled.data.listed import check_present, named_classes, split_listed
from refilled.data.pixels import FilePixels
from refilled.errors import UserError
from refilled.labels import LabelSpace

_DATASET = "Stanford Dogs"
_LISTS = ("train_list.mat", "test_list.mat")
_SIDES = ("xmin", "ymin", "xmax", "ymax")

Listing = dict[str, int]
"""The number of its class for each file, which is written ``n02085620-Chihuahua/n02085620_10074.jpg``."""


def find_dogs(path: Path) -> Path | None:
    """The folder with Stanford Dogs' files, which is ``path`` or nothing: its archives name none."""
    has_lists = any((folder / name).is_file() for folder in (path, path / "lists") for name in _LISTS)
    has_folders = (path / "Images").is_dir() and (path / "Annotation").is_dir()
    return path if has_lists or has_folders else None


def read_dogs(
    path: str | Path,
    *,
    split_seed: int = 0,
    val_fraction: float = 0.1,
    test_fraction: float | None = None,
    crop: bool = False,
    skip_bad_images: bool = False,
) -> Splits:
    """Stanford Dogs with its official training and test parts; validation is held out of training.

    Classes are called as people read them (``Chihuahua`` for ``n02085620-Chihuahua``) and come in the
    order of their numbers in the lists.

    Args:
        path: the folder with Images, Annotation, train_list.mat and test_list.mat.
        split_seed: which images are held out.
        val_fraction: share of each class's training images for validation (of all its images with a
            ``test_fraction``); 0 for none.
        test_fraction: share of each class for a random test part in place of the official one.
        crop: show a square around the first bounding box of an image (see
            :func:`refilled.data.decode.square_around`). Off, because what is usually reported for these
            images is accuracy on the whole photograph, and an XML file per image has to be read for it.
        skip_bad_images: leave out images that are missing or cannot be read, when they are loaded.

    Returns:
        Parts whose images are files, not yet decoded: channels 3; ``image_size`` is the side when the
        squares that are shown (judged by up to 256 of them) have one size.
    """
    root = Path(path)
    if find_dogs(root) is None:
        raise UserError(
            f"{path} holds no {_DATASET}: Images, Annotation, train_list.mat and test_list.mat are expected"
        )
    train, test = (_read_list(_list_file(root, name)) for name in _LISTS)
    both = next((name for name in test if name in train), None)
    if both is not None:
        raise UserError(f"{both} is in both {_LISTS[0]} and {_LISTS[1]}; download {_DATASET}' lists again")
    numbers = train | test
    classes, label_of = _classes(numbers, _list_file(root, _LISTS[0]))
    paths = [root / "Images" / name for name in numbers]
    if not skip_bad_images:
        check_present(paths, _DATASET)
    annotations = [root / "Annotation" / name.rpartition(".")[0] for name in numbers]
    boxes = [first_box(file) for file in annotations] if crop else None
    labels = torch.tensor([label_of[number] for number in numbers.values()], dtype=torch.int64)
    pixels = FilePixels(paths, boxes=boxes, skip_bad_images=skip_bad_images)
    return split_listed(
        "dogs",
        root,
        ImageSet(pixels, labels, classes),
        torch.tensor([name in test for name in numbers]),
        split_seed=split_seed,
        val_fraction=val_fraction,
        test_fraction=test_fraction,
    )


def _classes(numbers: Listing, file: Path) -> tuple[LabelSpace, dict[int, int]]:
    """Class names in the order of the numbers, and each number's label; one folder has one number."""
    folder_of: dict[int, str] = {}
    number_of: dict[str, int] = {}
    for name, number in numbers.items():
        folder = name.partition("/")[0]
        known_folder, known = folder_of.setdefault(number, folder), number_of.setdefault(folder, number)
        if known_folder != folder:
            raise UserError(f"{file.parent}: class {number} is both {known_folder} and {folder} in the lists")
        if known != number:
            raise UserError(f"{file.parent}: {folder} is class {known} and class {number} in the lists")
    ordered = sorted(folder_of)
    names = [folder_of[number].partition("-")[2] or folder_of[number] for number in ordered]
    return named_classes(names, file), {number: label for label, number in enumerate(ordered)}


def _list_file(root: Path, name: str) -> Path:
    return next((file for file in (root / name, root / "lists" / name) if file.is_file()), root / name)


def _read_list(file: Path) -> Listing:
    """One of the lists; MATLAB's file_list, annotation_list and labels have a row for each image."""
    from scipy.io import loadmat  # here: the library must import without scikit-learn, which brings it

    if not file.is_file():
        raise UserError(f"{file} is missing; it belongs to {_DATASET} (its archive is called lists.tar)")
    try:
        content = loadmat(file)
    except Exception as error:  # a damaged file raises nearly anything
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{file} cannot be read ({reason}); download {_DATASET}' lists again") from error
    columns = {}
    for key in ("file_list", "annotation_list", "labels"):
        if key not in content:
            raise UserError(f"{file} has no {key}; it is not a list of {_DATASET}")
        columns[key] = [_scalar(entry) for entry in np.asarray(content[key]).ravel()]
    if len(set(map(len, columns.values()))) != 1:
        counts = ", ".join(f"{len(column):,} in {key}" for key, column in columns.items())
        raise UserError(f"{file} must have as many entries of each kind: there are {counts}")
    listing: Listing = {}
    for row, (name, annotation, label) in enumerate(zip(*columns.values()), start=1):
        if not isinstance(name, str) or name.count("/") != 1 or name.rpartition(".")[0] != annotation:
            raise UserError(f"{file}, entry {row}: image {name!r} and annotation {annotation!r} do not match")
        if not isinstance(label, int | float) or not float(label).is_integer():
            raise UserError(f"{file}, entry {row}: label {label!r} is no whole number")
        if name in listing:
            raise UserError(f"{file}, entry {row}: {name} is there twice")
        listing[name] = int(label)
    return listing


def _scalar(entry: Any) -> Any:
    """What is in a cell of MATLAB's, which is an array of one entry."""
    values = np.asarray(entry).ravel().tolist()
    return values[0] if len(values) == 1 else None


def first_box(file: Path) -> Box:
    """The first bounding box in an annotation (left, top, right, bottom).

    Documents that define entities of their own are refused, so that nothing is expanded or fetched.
    """
    sides: dict[str, str] = {}
    within: list[str] = []
    boxes_read = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        within.append(tag)

    def text(data: str) -> None:
        if within[-2:-1] == ["bndbox"] and within[-1] in _SIDES and not boxes_read:
            sides[within[-1]] = sides.get(within[-1], "") + data

    def end(tag: str) -> None:
        nonlocal boxes_read
        within.pop()
        boxes_read += tag == "bndbox"

    def refuse(*_: object) -> None:
        raise UserError(f"{file} defines a document type, which no annotation does; it was not read on")

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = text
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(file.read_bytes(), True)
        left, top, right, bottom = (float(sides[side]) for side in _SIDES)
    except FileNotFoundError:
        raise UserError(f"{file} is missing; unpack {_DATASET}' annotations again") from None
    except (OSError, expat.ExpatError) as error:
        raise UserError(f"{file} cannot be read as XML: {error}") from error
    except (KeyError, ValueError) as error:
        raise UserError(f"{file} has no bndbox with the numbers {', '.join(_SIDES)}") from error
    if not (-1e6 < left < right < 1e6 and -1e6 < top < bottom < 1e6):
        raise UserError(f"{file}: the box {left:g} {top:g} {right:g} {bottom:g} is empty")
    return left, top, right, bottom
