"""The order of classes, which decides what a range of them (``20:70``) means."""

from importlib.resources import files
from pathlib import Path

from refilled.errors import UserError
from refilled.labels import LabelSpace

CLASS_ORDERS = ("default", "cifar-fs")


def class_order(name_or_file: str | Path, classes: LabelSpace) -> LabelSpace:
    """Classes of a data set in another order, spelled as the data set spells them.

    ``default`` leaves them as they are. ``cifar-fs`` is CIFAR-100 in the order of CIFAR-FS's 64 training,
    16 validation and 20 test classes (Bertinetto, Henriques, Torr and Vedaldi, "Meta-learning with
    differentiable closed-form solvers", ICLR 2019), alphabetical within each. Anything else is a text
    file with one class name per line; classes that it leaves out are left out.

    Args:
        name_or_file: one of ``CLASS_ORDERS``, or a file.
        classes: the classes there are; every name in the order must be one of them.
    """
    if name_or_file == "default":
        return classes
    if name_or_file == "cifar-fs":
        lines = files("refilled.data").joinpath("cifar_fs_order.txt").read_text(encoding="utf-8").splitlines()
        foreign = [name for name in lines if name not in classes]
        if foreign:
            raise UserError(f"class order cifar-fs is for CIFAR-100; this data has no class {foreign[0]!r}")
        return LabelSpace(classes[classes.label(name)] for name in lines)
    return _from_file(Path(name_or_file), classes)


def _from_file(file: Path, classes: LabelSpace) -> LabelSpace:
    if not file.is_file():
        names = ", ".join(repr(name) for name in CLASS_ORDERS)
        raise UserError(f"class order {str(file)!r} is neither {names} nor a file with one class per line")
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read as text: {error}") from error
    chosen: dict[int, int] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                label = classes.label(line.strip())
            except UserError as error:
                raise UserError(f"{file}, line {number}: {error}") from None
            if label in chosen:
                raise UserError(f"{file}, line {number}: {line.strip()!r} is in line {chosen[label]} already")
            chosen[label] = number
    if not chosen:
        raise UserError(f"{file} is empty; write one class name per line")
    return LabelSpace(classes[label] for label in chosen)
