"""CIFAR-100 (Krizhevsky, 2009) in the layout of its official "python version" archive.

Its files are pickles, and a pickle can run any code. They are read with an unpickler that knows the few
names these files contain and refuses every other one.
"""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from refilled.data.images import ImageSet, Splits
from refilled.data.pixels import TensorPixels
from refilled.data.splits import hold_out_validation
from refilled.errors import UserError
from refilled.labels import LabelSpace

FOLDER = "cifar-100-python"
_SIDE = 32


def find_cifar100(path: Path) -> Path | None:
    """The folder with CIFAR-100's files: ``path`` or the one named as in the archive within it."""
    for folder in (path, path / FOLDER):
        files = [name for name in ("meta", "train", "test") if (folder / name).is_file()]
        if len(files) >= 2 or (folder.name == FOLDER and folder.is_dir()):
            return folder
    return None


def read_cifar100(path: str | Path, *, split_seed: int = 0, val_fraction: float = 0.1) -> Splits:
    """CIFAR-100 with its 100 fine labels; validation is held out of the training images.

    Args:
        path: the folder ``cifar-100-python`` with train, test and meta, or the one around it.
        split_seed: which images are held out.
        val_fraction: share of each class's training images; 0 for no validation.
    """
    folder = find_cifar100(Path(path))
    if folder is None:
        raise UserError(
            f"{path} holds no CIFAR-100: the files train, test and meta are expected in it "
            f"or in {Path(path) / FOLDER}"
        )
    names = _entry(_read(folder / "meta"), "fine_label_names", folder / "meta")
    classes = LabelSpace(name.decode() if isinstance(name, bytes) else str(name) for name in names)
    whole = _image_set(folder / "train", classes)
    train, val = hold_out_validation(whole.labels, val_fraction, split_seed)
    note = f"validation is {val_fraction:.0%} of each training class, held out with split seed {split_seed}"
    return Splits(
        name="cifar100",
        train=whole if not len(val) else whole.select(train),
        val=whole.select(val),
        test=_image_set(folder / "test", classes),
        image_size=_SIDE,
        channels=3,
        augment="crop-flip",
        note=note if len(val) else "",
    )


def _image_set(file: Path, classes: LabelSpace) -> ImageSet:
    content = _read(file)
    data, labels = _entry(content, "data", file), _entry(content, "fine_labels", file)
    expected = (len(labels), 3 * _SIDE**2)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape != expected:
        shape = f"{data.dtype} {list(data.shape)}" if isinstance(data, np.ndarray) else type(data).__name__
        raise UserError(
            f"{file}: data must be uint8 {list(expected)} for its {len(labels)} labels, "
            f"not {shape}; download CIFAR-100 again"
        )
    try:
        numbers = torch.tensor([int(label) for label in labels], dtype=torch.int64)
    except (TypeError, ValueError) as error:
        raise UserError(f"{file}: fine_labels are not numbers; download CIFAR-100 again") from error
    if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(classes):
        raise UserError(
            f"{file}: labels from {int(numbers.min())} to {int(numbers.max())} do not fit the "
            f"{len(classes)} names in {file.with_name('meta')}"
        )
    images = torch.from_numpy(np.require(data.reshape(-1, 3, _SIDE, _SIDE), requirements="W"))
    return ImageSet(TensorPixels(images), numbers, classes)


def _read(file: Path) -> dict[Any, Any]:
    try:
        with file.open("rb") as stream:
            content = _CifarUnpickler(stream, file).load()
    except FileNotFoundError:
        raise UserError(f"{file} is missing; CIFAR-100 has the files train, test and meta") from None
    except UserError:
        raise
    except Exception as error:  # a damaged pickle raises nearly anything
        reason = str(error) or type(error).__name__
        raise UserError(f"{file} cannot be read ({reason}); download CIFAR-100 again") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} is not a file of CIFAR-100: it holds a {type(content).__name__}")
    return content


def _entry(content: dict[Any, Any], name: str, file: Path) -> Any:
    """A value by name; the files were written by Python 2, whose strings arrive as bytes."""
    value = content.get(name, content.get(name.encode()))
    if value is None:
        hint = " (CIFAR-10 has none)" if name.startswith("fine") else ""
        raise UserError(f"{file} has no {name}{hint}; it is not a file of CIFAR-100")
    if not isinstance(value, list | np.ndarray):
        raise UserError(f"{file}: {name} is a {type(value).__name__}, not a list; download CIFAR-100 again")
    return value


def _empty_array(kind: Any, shape: Any, code: Any) -> np.ndarray:
    """numpy's ``_reconstruct``: the array whose contents follow in the file."""
    return np.ndarray((0,), np.uint8)


def _array_from_buffer(buffer: Any, dtype: np.dtype, shape: Any, order: str) -> np.ndarray:
    """numpy's ``_frombuffer``, which pickles of protocol 5 name."""
    return np.frombuffer(buffer, dtype=dtype).reshape(shape, order="F" if order == "F" else "C")


def _bytes_from_text(text: str, encoding: str) -> bytes:
    """``_codecs.encode`` as far as it is needed: how Python 3 writes bytes in an old protocol."""
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"encoding {encoding!r}")
    return text.encode("latin1")


_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _bytes_from_text,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _empty_array for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _array_from_buffer for core in ("core", "_core")},
}


class _CifarUnpickler(pickle.Unpickler):
    def __init__(self, stream: Any, file: Path):
        super().__init__(stream, encoding="bytes")
        self.file = file

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise UserError(
                f"{self.file} asks for {module}.{name}, which no file of CIFAR-100 does; it was not run. "
                f"Download CIFAR-100 from a source you trust"
            ) from None
