"""Labelled images: one reader per layout on disk, splits, augmentation, and batches on the device."""

import difflib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from refilled.data.augment import AUGMENTATIONS, augment
from refilled.data.batches import Batch, Batches, Plan
from refilled.data.cifar100 import find_cifar100, read_cifar100
from refilled.data.cub import find_cub, read_cub
from refilled.data.digits import read_digits
from refilled.data.dogs import find_dogs, read_dogs
from refilled.data.folder import find_parts, images_under, read_folder
from refilled.data.images import ImageSet, Pixels, Progress, Splits, check_trainable, load_set
from refilled.data.miniimagenet import find_miniimagenet, read_miniimagenet
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
    "Progress", "Splits", "TensorPixels", "augment", "channel_statistics", "check_is_there",
    "check_outside", "check_trainable", "choose_shots", "has_lists", "has_parts", "hold_out",
    "load_set", "open_data", "open_unlabelled", "order_classes", "read_cifar100", "read_cub", "read_digits",
    "read_dogs", "read_folder", "read_miniimagenet",
]  # fmt: skip

_Finder = Callable[[Path], Path | None]
_KNOWN: dict[str, tuple[str, _Finder]] = {
    "cifar100": ("CIFAR-100", find_cifar100),
    "cub": ("CUB-200-2011", find_cub),
    "dogs": ("Stanford Dogs", find_dogs),
    "miniimagenet": ("miniImageNet", find_miniimagenet),
}
"""Data sets that are known by what is in their folder."""
_FILE_READERS: dict[str, Callable[..., Splits]] = {
    "folder": read_folder, "cub": read_cub, "dogs": read_dogs, "miniimagenet": read_miniimagenet
}  # fmt: skip
_WITH_LISTS: dict[str, Callable[..., Splits]] = {"cub": read_cub, "dogs": read_dogs}
"""Those that have official lists, and are also divided otherwise."""
_ACCEPTED = (
    'give "digits", a folder of images (DIR/CLASS/*.jpg), or the folder with the files of '
    "CIFAR-100, CUB-200-2011, Stanford Dogs or miniImageNet"
)


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
    layout, path = _locate(spec)
    own_layout, own_path = _locate(data) if data is not None else ("", Path())
    itself = (layout, path.resolve()) == (own_layout, own_path.resolve())
    if data is not None and not itself and "digits" not in (layout, own_layout):
        _check_apart(path, own_path)
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


def check_is_there(spec: str | Path) -> None:
    """Refuse what :func:`open_data` would not find, without reading it."""
    layout, path = _locate(spec)
    if layout in _KNOWN and _KNOWN[layout][1](path) is None:
        raise UserError(f"{path} holds no {_KNOWN[layout][0]}")


def check_outside(folder: Path, spec: str | Path) -> None:
    """Refuse a folder to write to that lies in that of the data, where it would be taken for a class."""
    layout, path = _locate(spec)
    if layout != "digits" and path.resolve() in (folder.resolve(), *folder.resolve().parents):
        raise UserError(
            f"{folder} lies in the data, {path}, and would be taken for a part of them; choose another --out"
        )


def has_lists(spec: str | Path) -> bool:
    """Whether data come with official lists of test images that a ``test_fraction`` can take the place of."""
    return _locate(spec)[0] in _WITH_LISTS


def has_parts(spec: str | Path) -> bool:
    """Whether data come with test images of their own, which need not be held out."""
    layout, path = _locate(spec)
    return bool(find_parts(path)) if layout == "folder" else layout != "digits"


def _check_apart(path: Path, data: Path) -> None:
    """Refuse two folders of which one is in the other: they are split in different ways."""
    here, there = path.resolve(), data.resolve()
    if here == there or here in there.parents or there in here.parents:
        raise UserError(
            f"{path} and {data} lie in one another, so that test images could be among those without labels; "
            f"keep the two apart (or give both the same, for its own training images)"
        )


def _locate(spec: str | Path) -> tuple[str, Path]:
    """Layout and folder of what a person calls data; digits, which have none, are at a path of that name."""
    if spec == "digits":
        return "digits", Path("digits")
    layout, _, rest = spec.partition(":") if isinstance(spec, str) else ("", "", "")
    layout = layout if layout in {*_KNOWN, "folder"} and rest else ""
    path = Path(rest if layout else spec).expanduser()
    if not path.exists():
        raise UserError(f"no such folder: {path}{_near_miss(str(spec))} ({_ACCEPTED})")
    return layout or _detect(path), path


def _read(
    spec: str | Path,
    split_seed: int,
    val_fraction: float,
    test_fraction: float | None,
    skip_bad_images: bool,
) -> Splits:
    layout, path = _locate(spec)
    if test_fraction is not None:
        if layout not in _WITH_LISTS:
            raise UserError(
                f"test_fraction is for CUB-200-2011 and Stanford Dogs, in place of their official lists of "
                f"test images; {spec} has none"
            )
        return _WITH_LISTS[layout](
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


def _detect(path: Path) -> str:
    """Which layout a folder has, by what is in it."""
    found = [layout for layout, (_, find) in _KNOWN.items() if find(path)]
    if len(found) > 1:
        names = " and ".join(_KNOWN[layout][0] for layout in found)
        specs = " or ".join(f"{layout}:{path}" for layout in found)
        raise UserError(f"{path} holds {names}; say which is meant: {specs}")
    return found[0] if found else "folder"


def _near_miss(spec: str) -> str:
    near = difflib.get_close_matches(spec.lower(), ["digits"], cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def _choose_classes(known: LabelSpace, classes: str | LabelSpace | None, order: str | Path) -> LabelSpace:
    ordered = order_classes(order, known)
    chosen = ordered.choose(classes) if isinstance(classes, str) else ordered if classes is None else classes
    if not len(chosen):
        raise UserError(f"no classes are named in {classes!r}; give a range such as 0:10, or names")
    return chosen
