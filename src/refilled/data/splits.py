"""Which images go where: hold-out parts and few shots, as row numbers.

Everything is stratified (class by class) and drawn from a generator made for that class, so that a
result depends on the seed, the class's label and how many images the class has; never on the other
classes, the global random state or the platform.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from refilled.data.randomness import seeded_generator
from refilled.errors import UserError
from refilled.labels import LabelSpace

SMALLEST_CLASS_FOR_VALIDATION = 5
"""A class with fewer training images gives none of them to validation."""


def _shuffled_classes(labels: Tensor, seed: int) -> Iterator[tuple[int, Tensor]]:
    """Each label that occurs with its rows in a random order."""
    by_class = torch.argsort(labels, stable=True)
    present, counts = torch.unique(labels, return_counts=True)
    for label, rows in zip(present.tolist(), by_class.split(counts.tolist())):
        shuffle = torch.randperm(len(rows), generator=seeded_generator(seed, label, len(rows)))
        yield label, rows[shuffle]


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts).sort().values if parts else torch.empty(0, dtype=torch.int64)


def hold_out(
    labels: Tensor, fraction: float, seed: int, *, minimum: int = 0, smallest_class: int = 2
) -> tuple[Tensor, Tensor]:
    """Sets a fraction of every class aside; every class keeps at least one image.

    Args:
        labels: int64 [N]
        fraction: share of each class to hold out, rounded to the nearest number of images; 0 for none.
        seed: which images they are.
        minimum: at least this many of a class are held out.
        smallest_class: classes with fewer images give none.

    Returns:
        The rows that are kept [K] and those that are held out [N - K], both in ascending order.
    """
    if not 0 <= fraction < 1:
        raise UserError(f"a part to hold out is a fraction from 0 to below 1, not {fraction}")
    kept, held = [], []
    for _, rows in _shuffled_classes(labels, seed):
        wanted = max(minimum, int(fraction * len(rows) + 0.5))
        count = min(wanted, len(rows) - 1) if fraction > 0 and len(rows) >= smallest_class else 0
        held.append(rows[:count])
        kept.append(rows[count:])
    return _joined(kept), _joined(held)


def hold_out_validation(labels: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Training and validation rows out of ``labels`` [N]; small classes are left whole."""
    return hold_out(labels, fraction, seed, minimum=1, smallest_class=SMALLEST_CLASS_FOR_VALIDATION)


def three_parts(
    labels: Tensor, val_fraction: float, test_fraction: float, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Training, validation and test rows out of ``labels`` [N], each in ascending order.

    Both fractions are of the whole class. A class with at least two images has a test image.
    """
    if min(val_fraction, test_fraction) < 0 or val_fraction + test_fraction >= 1:
        raise UserError(
            f"validation ({val_fraction:g}) and test ({test_fraction:g}) must leave a part for training: "
            f"two fractions, none below 0, that sum to less than 1"
        )
    rest, test = hold_out(labels, test_fraction, seed, minimum=1)
    train, val = hold_out_validation(labels[rest], val_fraction / (1 - test_fraction), seed)
    return rest[train], rest[val], test


def describe_parts(val_fraction: float, test_fraction: float, split_seed: int) -> str:
    """How a set was divided, for the person: ``split 70/10/20 per class with split seed 0``."""
    train, val, test = (
        f"{100 * part:.3g}" for part in (1 - val_fraction - test_fraction, val_fraction, test_fraction)
    )
    return f"split {train}/{val}/{test} per class with split seed {split_seed}"


def shots(labels: Tensor, k: int, seed: int, classes: LabelSpace | None = None) -> Tensor:
    """Rows of ``k`` images of every class, in ascending order: int64 [k * classes].

    With the same seed, the rows for a smaller ``k`` are among those for a larger one.

    Args:
        labels: int64 [N]
        k: images per class.
        seed: which images they are.
        classes: names for the error message, and the classes that must be there; without it those
            that occur.
    """
    if k < 1:
        raise UserError(f"at least 1 image per class is needed, not {k} shots")
    counts = torch.bincount(labels, minlength=len(classes) if classes else 0)
    needed = torch.arange(len(counts)) if classes else torch.unique(labels)
    short = [label for label in needed.tolist() if counts[label] < k]
    if short:
        name = repr(classes[short[0]]) if classes else str(short[0])
        count = int(counts[short[0]])
        more = f" ({len(short) - 1} more classes have too few)" if len(short) > 1 else ""
        raise UserError(f"class {name} has {count} training images and {k} shots were asked for{more}")
    return _joined([rows[:k] for _, rows in _shuffled_classes(labels, seed)])
