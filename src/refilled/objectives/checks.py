"""Shape and range checks that the objectives share; an error prints the offending shape."""

from torch import Tensor


def check_rows(labels: Tensor, **matrices: Tensor) -> None:
    """Every matrix is [B, anything] for labels of shape [B]."""
    if labels.ndim != 1:
        raise ValueError(f"labels must have shape [B], not {list(labels.shape)}")
    for name, matrix in matrices.items():
        if matrix.ndim != 2 or len(matrix) != len(labels):
            raise ValueError(
                f"{name} must have shape [B, n] with B = {len(labels)} labels, not {list(matrix.shape)}"
            )


def check_same(name_a: str, a: Tensor, name_b: str, b: Tensor) -> None:
    """Two matrices over the same rows and classes."""
    if a.ndim != 2 or a.shape != b.shape:
        raise ValueError(
            f"{name_a} and {name_b} must have one shape [B, C], not {list(a.shape)} and {list(b.shape)}"
        )


def check_temperature(smallest: float = 0.0, **temperatures: float) -> None:
    """Temperatures are positive, and not so small that exponentials vanish."""
    for name, value in temperatures.items():
        if not value > smallest:
            raise ValueError(f"{name} must be greater than {smallest}, not {value}")
