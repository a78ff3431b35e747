"""A folder of images: ``DIR/class/*.jpg``, or ``DIR/{train,val,test}/class/*.jpg``."""

import os
from pathlib import Path

import torch

from refilled.data.images import ImageSet, Splits, check_trainable
from refilled.data.listed import listed_splits
from refilled.data.pixels import FilePixels
from refilled.data.splits import describe_parts, hold_out_validation, three_parts
from refilled.errors import UserError
from refilled.labels import LabelSpace

IMAGE_SUFFIXES = (
    ".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm",
)  # fmt: skip
_PART_NAMES = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
_LEFT_BY_SYSTEMS = ("__macosx", "@eadir", "$recycle.bin", "system volume information")

ClassFiles = dict[str, list[Path]]
"""Image files of each class, both in sorted order."""


def read_folder(
    path: str | Path,
    *,
    split_seed: int = 0,
    val_fraction: float = 0.1,
    test_fraction: float = 0.2,
    skip_bad_images: bool = False,
) -> Splits:
    """Images in one folder per class, with the parts that the folder has or with parts made from it.

    Folders ``train``, ``val`` (or ``valid``, ``validation``) and ``test`` are taken as they are. Where one
    is missing, it is made: without ``test``, ``val`` is the test part; validation is then held out of
    ``train``. Classes and files are sorted by name, so that the order on disk does not matter.

    Args:
        path: the folder. Folders within a class folder belong to that class.
        split_seed: which images are held out where a part has to be made.
        val_fraction: share of each class for a validation part that has to be made; 0 for none.
        test_fraction: share of each class for a test part that has to be made.
        skip_bad_images: leave out images that cannot be read, when they are loaded.

    Returns:
        Parts whose images are files, not yet decoded: channels 3; ``image_size`` is the side when the
        images (judged by up to 256 of them) are squares of one size.
    """
    root = Path(path)
    _check_folder(root)
    parts = find_parts(root)
    if parts:
        fractions = val_fraction, test_fraction
        train, val, test, note = _read_parts(root, parts, fractions, split_seed, skip_bad_images)
    else:
        whole = _read_train(root, skip_bad_images)
        rows = three_parts(whole.labels, val_fraction, test_fraction, split_seed)
        train, val, test = (whole.select(part) for part in rows)
        made = describe_parts(val_fraction, test_fraction, split_seed)
        note = f"{root} has no train/test folders: {made}"
    note = "; ".join(part for part in (note, _unused(root, parts)) if part)
    return listed_splits(root.resolve().name, train, val, test, note=note)


def _read_parts(
    root: Path, parts: dict[str, Path], fractions: tuple[float, float], seed: int, skip: bool
) -> tuple[ImageSet, ImageSet, ImageSet, str]:
    """The three parts out of the folders there are, and a note on what was made."""
    val_fraction, test_fraction = fractions
    train = _read_train(parts["train"], skip)
    given = {name: _read_part(parts[name], train, parts["train"], skip) for name in parts if name != "train"}
    if "val" in given and "test" in given:
        return train, given["val"], given["test"], ""
    if not given:
        rows = three_parts(train.labels, val_fraction, test_fraction, seed)
        made = describe_parts(val_fraction, test_fraction, seed)
        kept, val, test = (train.select(part) for part in rows)
        return kept, val, test, f"{root} has no val or test folder: {made}"
    kept_rows, val_rows = hold_out_validation(train.labels, val_fraction, seed)
    held = f"validation is {val_fraction:.0%} of each class of train, with split seed {seed}"
    held = held if val_fraction > 0 else "there is no validation"
    if "test" in given:
        note = f"{root} has no val folder: {held}"
    else:
        note = f"{root} has no test folder: {parts['val'].name} is used for testing; {held}"
    test = given["test"] if "test" in given else given["val"]
    return train.select(kept_rows), train.select(val_rows), test, note


def _read_train(folder: Path, skip_bad_images: bool) -> ImageSet:
    """All images of a folder that training images are taken from."""
    listing = _list_classes(folder)
    classes = _label_space(listing, folder)
    if len(classes) == 1:
        raise UserError(f"{folder} has only one class ({classes[0]}); at least 2 class folders are needed")
    _check_level(listing, folder)
    images = _image_set(listing, classes, skip_bad_images)
    check_trainable(images, classes, str(folder))
    return images


def _check_level(listing: ClassFiles, folder: Path) -> None:
    """Refuse the parent of data sets: there no class folder holds an image itself, only deeper folders do."""
    if not any(path.parent == folder / name for name, files in listing.items() for path in files):
        inside = folder / next(iter(listing))
        raise UserError(
            f"the folders in {folder} hold no images themselves, only other folders; "
            f"did you mean one of them, such as {inside}?"
        )


def _read_part(folder: Path, train: ImageSet, train_folder: Path, skip_bad_images: bool) -> ImageSet:
    """Images to validate or test on; their classes must be among those of train."""
    listing = _list_classes(folder)
    foreign = [name for name in _label_space(listing, folder) if name not in train.classes]
    if foreign:
        named = ", ".join(foreign[:5]) + (f" and {len(foreign) - 5} more" if len(foreign) > 5 else "")
        raise UserError(
            f"{folder} has classes that {train_folder} does not have: {named}; "
            f"add training images of them or remove them"
        )
    return _image_set(listing, train.classes, skip_bad_images)


def _label_space(names: ClassFiles, folder: Path) -> LabelSpace:
    try:
        return LabelSpace(names)
    except UserError as error:
        raise UserError(f"{folder}: {error}") from None


def _image_set(listing: ClassFiles, classes: LabelSpace, skip_bad_images: bool) -> ImageSet:
    paths = [path for files in listing.values() for path in files]
    labels = [label for name, files in listing.items() for label in [classes.label(name)] * len(files)]
    pixels = FilePixels(paths, channels=3, skip_bad_images=skip_bad_images)
    return ImageSet(pixels, torch.tensor(labels, dtype=torch.int64), classes)


def find_parts(root: Path) -> dict[str, Path]:
    """The folders train, val and test, by those names; none where the folders in ``root`` are classes.

    A class may be called "train" as well (CIFAR-100 has one): then there are images right in it.
    """
    folders, _ = _scan(root)
    parts: dict[str, Path] = {}
    for folder in folders:
        part = _PART_NAMES.get(folder.name.casefold())
        if part is not None and part in parts:
            raise UserError(f"{root} has both {parts[part].name} and {folder.name}; keep one of them")
        if part is not None:
            parts[part] = folder
    nothing_else = len(parts) == len(folders)
    if "train" in parts:
        inner_folders, inner_images = _scan(parts["train"])
        return parts if nothing_else or (inner_folders and not inner_images) else {}
    if parts and nothing_else and any(_scan(folder)[0] for folder in parts.values()):
        names = " and ".join(folder.name for folder in parts.values())
        raise UserError(f"{root} has {names} but no train; put training images in {root / 'train'}/CLASS/…")
    return {}


def _unused(root: Path, parts: dict[str, Path]) -> str:
    """Says what lies beside the class folders (or beside train, val and test) and is not read."""
    folders, images = _scan(root)
    others = [folder.name for folder in folders if parts and folder not in parts.values()]
    if images:
        others.append(f"{len(images)} images outside class folders")
    return f"not used: {', '.join(others)}" if others else ""


def _list_classes(folder: Path) -> ClassFiles:
    class_folders, loose_images = _scan(folder)
    if not class_folders and loose_images:
        raise UserError(f"{folder} holds images but no class folders; put them in {folder}/CLASS/…")
    if not class_folders:
        raise UserError(f"{folder} is empty; put images in {folder}/CLASS/…")
    listing = {class_folder.name: images_under(class_folder) for class_folder in class_folders}
    empty = [name for name, files in listing.items() if not files]
    if len(empty) == len(listing):
        raise UserError(f"{folder} has folders but no images in them (files {' '.join(IMAGE_SUFFIXES)})")
    if empty:
        more = f" ({len(empty) - 1} more classes have none)" if len(empty) > 1 else ""
        raise UserError(f"{folder / empty[0]} has no images{more}; add some or remove the folder")
    return listing


def images_under(folder: Path) -> list[Path]:
    """All image files of a folder and the folders in it, sorted by name; hidden ones do not count."""
    found, seen = [], set()
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        if here.resolve() not in seen:  # a link may lead back up
            seen.add(here.resolve())
            folders, images = _scan(here)
            waiting += reversed(folders)
            found += images
    return found


def is_left_out(name: str) -> bool:
    """Whether a folder or file of that name is hidden, or left behind by a system."""
    return name.startswith(".") or name.casefold() in _LEFT_BY_SYSTEMS


def _scan(folder: Path) -> tuple[list[Path], list[Path]]:
    """Folders and image files right in a folder, sorted by name; hidden ones do not count."""
    folders: list[str] = []
    images: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if is_left_out(entry.name):
                    continue
                if entry.is_dir():
                    folders.append(entry.name)
                elif entry.name.lower().endswith(IMAGE_SUFFIXES):
                    images.append(entry.name)
    except OSError as error:
        raise UserError(f"cannot read the folder {folder}: {error.strerror}") from error
    return [folder / name for name in sorted(folders)], [folder / name for name in sorted(images)]


def _check_folder(root: Path) -> None:
    if not root.exists():
        raise UserError(f"{root} does not exist; give a folder of images, one folder per class")
    if not root.is_dir():
        raise UserError(f"{root} is a file, not a folder; give the folder that holds the class folders")
