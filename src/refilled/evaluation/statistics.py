"""Means, spreads, and whether a difference over a few seeds is more than chance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Two-sided 95 % points of Student's t for 1 to 30 degrees of freedom.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
        2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048,
        2.045, 2.042)  # fmt: skip


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (n - 1) of some runs; the deviation of one run is NaN."""

    mean: float
    std: float
    runs: int


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard deviation of at least one value."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return Spread(mean, float("nan"), len(values))
    return Spread(mean, math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)), len(values))


def half_interval(differences: Sequence[float]) -> float:
    """Half the width of the 95 % confidence interval of the mean of paired differences (two or more)."""
    n = len(differences)
    t = _T95[n - 2] if n - 2 < len(_T95) else 1.96 + 2.4 / (n - 1)  # good to 0.1 % beyond the table
    return t * spread(differences).std / math.sqrt(n)


def paired_error(difference: float, images: int) -> float:
    """95 % half-width of a difference of two accuracies on the same images, if it is all one-sided.

    The least doubt that the choice of test images leaves, whatever the seeds say; for a handful of images
    it is large (four images are added, half of them against, as in Agresti and Coull's interval).
    """
    share = (abs(difference) * images + 2) / (images + 4)
    return 1.96 * math.sqrt(max(share * (1 - share), 0.0) / (images + 4))


def counting_error(accuracies: Sequence[float], images: int) -> float:
    """95 % half-width of the difference of two accuracies on that many images, one run of each.

    It covers the choice of test images only, not the luck of a seed: a lower bound of the doubt.
    """
    return 1.96 * math.sqrt(sum(a * (1 - a) for a in accuracies) / max(images, 1))
