"""Labelled images: one reader per layout on disk, splits, augmentation, and batches on the device."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from refilled.data.augment import AUGMENTATIONS, augment
from refilled.data.batches import Batch, Batches, Plan
from refilled.data.cifar100 import read_cifar100
from refilled.data.cub import read_cub
from refilled.data.digits import read_digits
from refilled.data.dogs import read_dogs
from refilled.data.folder import images_under, read_folder
from refilled.data.images import ImageSet, Pixels, Progress, Splits, check_trainable, load_set
from refilled.data.layouts import (
    WITH_LISTS,
    are_same,
    check_apart,
    check_is_there,
    check_outside,
    has_lists,
    has_parts,
    locate,
)
from refilled.data.miniimagenet import read_miniimagenet
from refilled.data.orders import CLASS_ORDERS
from refilled.data.orders import class_order as order_classes
from refilled.data.pixels import FilePixels, TensorPixels
from refilled.data.splits import hold_out
from refilled.data.splits import shots as choose_shots
from refilled.data.statistics import channel_statistics
from refilled.errors import UserError
from refilled.labels import LabelSpace

__all__ = [
    "AUGMENTATIONS", "CLASS_ORDERS", "Batch", "Batches", "FilePixels", "ImageSet", "Pixels", "Plan",
    "Progress", "Splits", "TensorPixels", "are_same", "augment", "channel_statistics", "check_is_there",
    "check_outside", "check_trainable", "choose_shots", "has_lists", "has_parts", "hold_out", "load_set",
    "open_data", "open_unlabelled", "order_classes", "read_cifar100", "read_cub", "read_digits", "read_dogs",
    "read_folder", "read_miniimagenet",
]  # fmt: skip

_FILE_READERS: dict[str, Callable[..., Splits]] = {
    "folder": read_folder, "cub": read_cub, "dogs": read_dogs, "miniimagenet": read_miniimagenet
}  # fmt: skip


def open_data(
    spec: str | Path,
    *,
    classes: str | LabelSpace | None = None,
    class_order: str | Path = "default",
    shots: int | None = None,
    shots_seed: int = 0,
    split_seed: int = 0,
    val_fraction: float = 0.1,
    test_fraction: float | None = None,
    skip_bad_images: bool = False,
) -> Splits:
    """Labelled images by what a person calls them; files of a folder are not decoded yet.

    Args:
        spec: ``digits``; or a folder of images or with the files of CIFAR-100, CUB-200-2011, Stanford
            Dogs or miniImageNet, which are told apart by what is in them; or ``folder:PATH``,
            ``cifar100:PATH``, ``cub:PATH``, ``dogs:PATH``, ``miniimagenet:PATH`` to say which it is. A
            folder that is called digits is ``./digits``. CUB-200-2011 is cropped to its boxes and
            Stanford Dogs is not; miniImageNet has all 100 classes, of which ``0:64``, ``64:80`` and
            ``80:100`` are those of its train, val and test files.
        classes: only these, in this order: a range of the class order such as ``20:70``, names such as
            ``cat,dog``, or a label space.
        class_order: ``default``, ``cifar-fs``, or a file with one class per line.
        shots: that many training images of each class only, chosen after validation is held out.
        shots_seed: which images those are.
        split_seed: which images are held out where a part has to be made.
        val_fraction: share of each class for a validation part that has to be made; 0 for none.
        test_fraction: share of each class for a test part in place of the official one, for CUB-200-2011 and
            Stanford Dogs; None: the official one.
        skip_bad_images: leave out image files that cannot be read, when they are loaded.
    """
    splits = _read(spec, split_seed, val_fraction, test_fraction, skip_bad_images)
    chosen = _choose_classes(splits.classes, classes, class_order)
    if chosen != splits.classes:
        splits = splits.only(chosen)
    if shots is not None:
        rows = choose_shots(splits.train.labels, shots, shots_seed, splits.classes)
        splits = replace(splits, train=splits.train.select(rows))
    return splits


def open_unlabelled(
    spec: str | Path,
    data: str | Path | None = None,
    *,
    classes: str | LabelSpace | None = None,
    class_order: str | Path = "default",
    split_seed: int = 0,
    val_fraction: float = 0.1,
    test_fraction: float | None = None,
    skip_bad_images: bool = False,
) -> ImageSet:
    """Images whose labels are not read, if they have any; files are not decoded yet.

    Args:
        spec: a folder of image files, which is taken whole, however it is arranged; or anything that
            :func:`open_data` takes, of which the training images are taken.
        data: what is learned beside them, as for :func:`open_data`. Where it is the same, its validation and
            test images are left out; a folder in it, or around it, is refused.
        classes: only these; a folder of image files then needs a folder for each class.
        class_order: of the data; another data set has its default order. All others are as for
            :func:`open_data`.

    Returns:
        A set with one class, of which nothing is known.
    """
    layout, path = locate(spec)
    own_layout, own_path = locate(data) if data is not None else ("", Path())
    itself = data is not None and are_same(spec, data)
    if data is not None and not itself and "digits" not in (layout, own_layout):
        check_apart(path, own_path)
    if layout == "folder" and classes is None and not itself:
        files = images_under(path)
        if not files:
            raise UserError(f"{path} holds no images, and no folder in it does")
        pixels: Pixels = FilePixels(files, skip_bad_images=skip_bad_images)
    else:
        pixels = open_data(
            spec, classes=classes, class_order=class_order if itself else "default", split_seed=split_seed,
            val_fraction=val_fraction, test_fraction=test_fraction if itself else None,
            skip_bad_images=skip_bad_images,
        ).train.pixels  # fmt: skip
    return ImageSet(pixels, torch.zeros(len(pixels), dtype=torch.int64), LabelSpace(["unlabelled"]))


def _read(
    spec: str | Path,
    split_seed: int,
    val_fraction: float,
    test_fraction: float | None,
    skip_bad_images: bool,
) -> Splits:
    layout, path = locate(spec)
    if test_fraction is not None:
        if layout not in WITH_LISTS:
            raise UserError(
                f"test_fraction is for CUB-200-2011 and Stanford Dogs, in place of their official lists of "
                f"test images; {spec} has none"
            )
        return _FILE_READERS[layout](
            path, split_seed=split_seed, val_fraction=val_fraction, test_fraction=test_fraction,
            skip_bad_images=skip_bad_images,
        )  # fmt: skip
    if layout == "digits":
        return read_digits(split_seed=split_seed, val_fraction=val_fraction)
    if layout == "cifar100":
        return read_cifar100(path, split_seed=split_seed, val_fraction=val_fraction)
    return _FILE_READERS[layout](
        path, split_seed=split_seed, val_fraction=val_fraction, skip_bad_images=skip_bad_images
    )


def _choose_classes(known: LabelSpace, classes: str | LabelSpace | None, order: str | Path) -> LabelSpace:
    ordered = order_classes(order, known)
    chosen = ordered.choose(classes) if isinstance(classes, str) else ordered if classes is None else classes
    if not len(chosen):
        raise UserError(f"no classes are named in {classes!r}; give a range such as 0:10, or names")
    return chosen
