"""What the readers of image files share: lines of text files, files that must be there, splits."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from refilled.data.images import ImageSet, Splits, check_trainable
from refilled.data.pixels import FilePixels, common_side
from refilled.data.splits import describe_parts, hold_out_validation, three_parts
from refilled.errors import UserError
from refilled.labels import LabelSpace

_FILES_TO_JUDGE_SIZE = 256
_LARGEST_SMALL_IMAGE = 64


def numbered_lines(file: Path, dataset: str) -> Iterator[tuple[int, str]]:
    """The lines of a text file that are not blank, with their numbers from 1 up."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise UserError(f"{file} is missing; it belongs to {dataset}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read as text: {error}") from error
    return ((number, line.strip()) for number, line in enumerate(lines, start=1) if line.strip())


def named_classes(names: Sequence[str], where: Path) -> LabelSpace:
    """A label space of at least two classes; what is wrong with the names is said with the file's name."""
    if len(names) < 2:
        raise UserError(f"{where} has {len(names)} classes; at least 2 are needed")
    try:
        return LabelSpace(names)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def check_present(paths: Sequence[Path], dataset: str) -> None:
    """Refuses a list of image files of which some are not there."""
    missing = [path for path in paths if not os.path.isfile(path)]
    if missing:
        raise UserError(
            f"{missing[0]} is missing ({len(missing):,} of {len(paths):,} listed images are); "
            f"unpack {dataset} again, or leave such images out with --skip-bad-images"
        )


def split_listed(
    name: str,
    root: Path,
    whole: ImageSet,
    in_test: Tensor,
    *,
    split_seed: int,
    val_fraction: float,
    test_fraction: float | None,
) -> Splits:
    """The parts of a data set that comes with a list of its test images.

    Args:
        name: what the data set is called.
        root: its folder, for errors.
        whole: all N images.
        in_test: bool [N], the official test part.
        split_seed: which images are held out.
        val_fraction: share of each class for validation, which is held out of the training images: of
            those with the official split, of all images with a random one. 0 for none.
        test_fraction: share of each class for a random test part in place of the official one.
    """
    if test_fraction is not None:
        check_trainable(whole, whole.classes, str(root))
        rows = three_parts(whole.labels, val_fraction, test_fraction, split_seed)
        note = f"instead of the official parts: {describe_parts(val_fraction, test_fraction, split_seed)}"
        return listed_splits(name, *(whole.select(part) for part in rows), note=note)
    train = whole.select(torch.nonzero(~in_test).squeeze(1))
    check_trainable(train, whole.classes, str(root), "training image")
    kept, val = hold_out_validation(train.labels, val_fraction, split_seed)
    note = f"validation is {val_fraction:.0%} of each training class, held out with split seed {split_seed}"
    test = whole.select(torch.nonzero(in_test).squeeze(1))
    return listed_splits(name, train.select(kept), train.select(val), test, note=note if len(val) else "")


def listed_splits(name: str, train: ImageSet, val: ImageSet, test: ImageSet, *, note: str) -> Splits:
    """Three parts of colour image files, with the size that they have in common."""
    side, augment = judged_size(train, val, test)
    return Splits(name, train, val, test, image_size=side, channels=3, augment=augment, note=note)


def judged_size(*parts: ImageSet) -> tuple[int | None, str]:
    """Side of the images where it is one, and the augmentation that suits it.

    Judged by files spread over all classes: opening every one would take too long.
    """
    files = [part.pixels for part in parts if isinstance(part.pixels, FilePixels)]
    shown = [
        (path, box)
        for pixels in files
        for path, box in zip(pixels.paths, pixels.boxes or [None] * len(pixels))
    ]
    shown = shown[:: max(1, len(shown) // _FILES_TO_JUDGE_SIZE)]
    side = common_side([path for path, _ in shown], [box for _, box in shown])
    small = side is not None and side <= _LARGEST_SMALL_IMAGE
    return side, "crop-flip" if small else "resized-crop-flip"
