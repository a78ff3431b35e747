"""What the objectives over feature maps share: maps [B, C, H, W] of two networks, brought to one size."""

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional as F


def check_maps(student: Tensor, teacher: Tensor, *, same_shape: bool = False) -> None:
    """Both are [B, C, H, W] with the same B, or even the same shape."""
    if student.ndim != 4 or teacher.ndim != 4 or len(student) != len(teacher):
        raise ValueError(
            f"student and teacher must be maps [B, C, H, W] that share B, not {list(student.shape)} "
            f"and {list(teacher.shape)}"
        )
    if same_shape and student.shape != teacher.shape:
        raise ValueError(
            f"student and teacher must have one shape, not {list(student.shape)} and {list(teacher.shape)}"
        )


def same_size(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """The maps of both with one height and one width: the larger ones are averaged down to the smaller.

    Args:
        student: maps [B, C, H, W].
        teacher: maps [B, C', H', W'].
    """
    check_maps(student, teacher)
    return averaged_down(student, teacher.shape[2:]), averaged_down(teacher, student.shape[2:])


def averaged_down(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Maps [B, C, H, W] averaged over equal parts, so that they are no larger than ``size``.

    Args:
        maps: of any size; a side that is small enough stays as it is.
        size: height and width, of which H and W need not be multiples.
    """
    height, width = (min(sides) for sides in zip(maps.shape[2:], size))
    if maps.shape[2:] == (height, width):
        return maps
    rows, columns = maps.shape[2] // height, maps.shape[3] // width
    if maps.shape[2:] == (rows * height, columns * width):
        # The same as below, but its gradient is deterministic on a GPU.
        return F.avg_pool2d(maps, (rows, columns))
    return F.adaptive_avg_pool2d(maps, (height, width))
