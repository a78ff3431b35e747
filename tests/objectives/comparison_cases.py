"""Batches for comparison matching, and its equality to the loop over all tuples."""

import itertools

import torch
from torch import Tensor

from refilled.objectives import comparison_matching

from . import reference

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}
WINDOWS = list(itertools.product([None, 0.02, 0.2, 1.0], [None, 1, 2, 5]))
SOME_WINDOWS = [(None, None), (0.2, None), (None, 3), (0.2, 3)]


def batch(seed: int, size: int = 16, dim: int = 8, classes: int = 4, dtype=torch.float64):
    """Random student [B, d], teacher [B, d + 3] and labels."""
    generator = torch.Generator().manual_seed(seed)
    student = torch.randn(size, dim, generator=generator, dtype=torch.float64).to(dtype)
    teacher = torch.randn(size, dim + 3, generator=generator, dtype=torch.float64).to(dtype)
    return student, teacher, torch.randint(0, classes, (size,), generator=generator)


def loss_and_gradient(function, student: Tensor, teacher: Tensor, labels: Tensor, **options):
    """Value and gradient with respect to the student."""
    student = student.detach().clone().requires_grad_()
    loss = function(student, teacher, labels, **options)
    loss.backward()
    return loss.detach(), student.grad


def assert_same(student: Tensor, teacher: Tensor, labels: Tensor, tolerance: float | None = None, **options):
    """Ours equals the float64 reference of the same numbers, relative to the greatest entry or to 1."""
    if tolerance is None:
        tolerance = TOLERANCE[student.dtype]
    loss, gradient = loss_and_gradient(comparison_matching, student, teacher, labels, **options)
    expected, expected_gradient = loss_and_gradient(
        reference.comparison_matching, student.double(), teacher.double(), labels, **options
    )
    assert loss.dtype == (torch.float64 if student.dtype == torch.float64 else torch.float32)
    assert gradient.dtype == student.dtype
    assert abs(loss.item() - expected.item()) <= tolerance * max(1.0, expected.item())
    if gradient.numel():
        scale = max(1.0, expected_gradient.abs().max().item())
        assert (gradient.double() - expected_gradient).abs().max().item() <= tolerance * scale
    return expected, expected_gradient
