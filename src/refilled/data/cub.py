"""CUB-200-2011 (Wah et al., 2011): birds, in the layout of its official archive.

The folder has ``images/`` and text files with one line per image, which begins with the image's number:
``images.txt`` (file), ``image_class_labels.txt`` (class), ``train_test_split.txt`` (1 for training) and
``bounding_boxes.txt`` (left, top, width, height). ``classes.txt`` names the classes by their numbers.
"""

import math
import re
from pathlib import Path

import torch

from refilled.data.decode import Box
from refilled.data.images import ImageSet, Splits
from refilled.data.listed import check_present, named_classes, numbered_lines, split_listed
from refilled.data.pixels import FilePixels
from refilled.errors import UserError
from refilled.labels import LabelSpace

FOLDER = "CUB_200_2011"
_DATASET = "CUB-200-2011"
_OWN_FILES = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "bounding_boxes.txt")

Table = dict[int, tuple[int, list[str]]]
"""By the number that a line begins with: which line it is, and its other fields."""


def find_cub(path: Path) -> Path | None:
    """The folder with CUB's files: ``path`` or the one named as in the archive within it."""
    for folder in (path, path / FOLDER):
        files = [name for name in _OWN_FILES if (folder / name).is_file()]
        if len(files) >= 2 or (folder.name == FOLDER and folder.is_dir()):
            return folder
    return None


def read_cub(
    path: str | Path,
    *,
    split_seed: int = 0,
    val_fraction: float = 0.1,
    test_fraction: float | None = None,
    crop: bool = True,
    skip_bad_images: bool = False,
) -> Splits:
    """CUB-200-2011 with its official training and test parts; validation is held out of training.

    Classes are called as people read them (``Black_footed_Albatross`` for ``001.Black_footed_Albatross``)
    and come in the order of their numbers; images come in the order of theirs.

    Cropped, an image shows a square with the bounding box's centre and longer side, so that nothing is
    stretched. The square is moved as far as it takes to lie within the image; where it is larger than the
    image's shorter side, it is made that small, and the ends of the box are cut off.

    Args:
        path: the folder ``CUB_200_2011``, or the one around it.
        split_seed: which images are held out.
        val_fraction: share of each class's training images for validation (of all its images with a
            ``test_fraction``); 0 for none.
        test_fraction: share of each class for a random test part in place of the official one. 0.3 is
            the paper's division, 70 % and 30 % of each class.
        crop: show the birds, as the paper does; otherwise the centre square of the whole photograph.
        skip_bad_images: leave out images that are missing or cannot be read, when they are loaded.

    Returns:
        Parts whose images are files, not yet decoded: channels 3; ``image_size`` is the side when the
        squares that are shown (judged by up to 256 of them) have one size.
    """
    folder = find_cub(Path(path))
    if folder is None:
        raise UserError(
            f"{path} holds no {_DATASET}: images.txt, classes.txt and the like are expected in it "
            f"or in {Path(path) / FOLDER}"
        )
    images = _table(folder / "images.txt", 1)
    if not images:
        raise UserError(f"{folder / 'images.txt'} is empty; download {_DATASET} again")
    paths = [folder / "images" / fields[0] for _, fields in images.values()]
    labels, classes = _labels(folder, images)
    is_train = _column(folder / "train_test_split.txt", images)
    for number, (line, fields) in is_train.items():
        if fields[0] not in ("0", "1"):
            raise UserError(
                f"{folder / 'train_test_split.txt'}, line {line}: image {number} has {fields[0]!r}; "
                f"1 (training) or 0 (test) is expected"
            )
    if not skip_bad_images:
        check_present(paths, _DATASET)
    boxes = _boxes(folder / "bounding_boxes.txt", images) if crop else None
    pixels = FilePixels(paths, boxes=boxes, skip_bad_images=skip_bad_images)
    return split_listed(
        "cub",
        folder,
        ImageSet(pixels, torch.tensor(labels, dtype=torch.int64), classes),
        torch.tensor([is_train[number][1][0] == "0" for number in images]),
        split_seed=split_seed,
        val_fraction=val_fraction,
        test_fraction=test_fraction,
    )


def _labels(folder: Path, images: Table) -> tuple[list[int], LabelSpace]:
    """Each image's label, in the order of ``images``, and the classes by their numbers."""
    named = _table(folder / "classes.txt", 1)
    numbers = sorted(named)
    names = [re.sub(r"^\d+\.", "", named[number][1][0]) for number in numbers]
    label_of = {str(number): label for label, number in enumerate(numbers)}
    column = _column(folder / "image_class_labels.txt", images)
    for line, fields in column.values():
        if fields[0] not in label_of:
            raise UserError(
                f"{folder / 'image_class_labels.txt'}, line {line}: "
                f"class {fields[0]!r} is not in {folder / 'classes.txt'}"
            )
    classes = named_classes(names, folder / "classes.txt")
    return [label_of[column[number][1][0]] for number in images], classes


def _boxes(file: Path, images: Table) -> list[Box]:
    column = _column(file, images, fields=4)
    boxes: list[Box] = []
    for number in images:
        line, fields = column[number]
        try:
            left, top, width, height = map(float, fields)
        except ValueError:
            left = top = width = height = math.nan
        if not (math.isfinite(left + top) and 0 < width < math.inf and 0 < height < math.inf):
            raise UserError(
                f"{file}, line {line}: {' '.join(fields)!r} is no box; left, top, width and height are "
                f"numbers, the last two above 0"
            )
        boxes.append((left, top, left + width, top + height))
    return boxes


def _column(file: Path, images: Table, fields: int = 1) -> Table:
    """A table that has one line for each of the images."""
    table = _table(file, fields)
    foreign = next((number for number in table if number not in images), None)
    if foreign is not None:
        line = table[foreign][0]
        raise UserError(f"{file}, line {line}: image {foreign} is not in {file.with_name('images.txt')}")
    absent = [number for number in images if number not in table]
    if absent:
        more = f" ({len(absent) - 1:,} more have none)" if len(absent) > 1 else ""
        raise UserError(f"{file} has no line for image {absent[0]} of images.txt{more}")
    return table


def _table(file: Path, fields: int) -> Table:
    """Lines of a number and so many fields; the last field may contain spaces. Sorted by the numbers."""
    table: Table = {}
    for line, text in numbered_lines(file, _DATASET):
        first, *rest = text.split(maxsplit=fields)
        if not re.fullmatch("[0-9]{1,9}", first) or len(rest) != fields:
            expected = "a number and a value" if fields == 1 else f"a number and {fields} values"
            raise UserError(f"{file}, line {line}: {expected} are expected, not {text[:60]!r}")
        if int(first) in table:
            raise UserError(f"{file}, line {line}: {first} is in line {table[int(first)][0]} already")
        table[int(first)] = line, rest
    return dict(sorted(table.items()))
