"""Comparison matching where distances are equal: duplicates, grids, collapsed embeddings."""

import math

import pytest
import torch

from refilled.objectives import comparison_matching

from . import reference
from .comparison_cases import SOME_WINDOWS, WINDOWS, assert_same, batch, loss_and_gradient


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("margin", "max_impostors"), SOME_WINDOWS)
def test_duplicates_within_and_across_classes(margin, max_impostors, dtype):
    student, teacher, labels = batch(5, size=18, dim=4, dtype=dtype)
    labels[:6] = torch.tensor([0, 0, 1, 1, 2, 0])
    student[1] = student[0]  # in one class
    student[2] = student[0]  # in another class
    student[4] = 3.0 * student[3]  # one direction, another length, another class
    student[5] = student[3]
    teacher[7] = teacher[8]
    assert_same(student, teacher, labels, margin=margin, max_impostors=max_impostors)


@pytest.mark.parametrize(("margin", "max_impostors"), WINDOWS)
@pytest.mark.parametrize("grid", [1, 2])
def test_coarse_grid_with_many_equal_distances(grid, margin, max_impostors):
    """Most distances occur many times: who is an impostor, and who is among the nearest K, is decided by
    the rule for ties (farther means really farther; lower index first)."""
    for seed in range(3):
        generator = torch.Generator().manual_seed(100 * grid + seed)
        student = torch.randint(-grid, grid + 1, (16, 3), generator=generator).double()
        teacher = torch.randn(16, 5, generator=generator, dtype=torch.float64)
        labels = torch.randint(0, 3, (16,), generator=generator)
        assert_same(student, teacher, labels, margin=margin, max_impostors=max_impostors)


@pytest.mark.parametrize("margin", [math.sqrt(2.0), 2.0, 2.0 - math.sqrt(2.0)])
def test_margin_excludes_impostors_exactly_at_the_bound(margin):
    """On the four half axes distances are 0, sqrt(2) and 2."""
    half_axes = torch.tensor([[1, 0], [0, 1], [-1, 0], [0, -1]], dtype=torch.float64).repeat(3, 1)
    teacher = batch(2, size=12)[1]
    labels = torch.tensor([0, 1, 1, 2, 0, 0, 2, 1, 1, 0, 2, 2])
    assert_same(half_axes, teacher, labels, margin=margin)
    assert_same(half_axes, teacher, labels, margin=margin, max_impostors=2)


def test_nearest_impostors_among_equals_are_those_of_lower_index():
    """Impostors 2, 3 and 4 are equally far from both the anchor and the positive; only the teacher tells
    them apart."""
    student = torch.eye(5, dtype=torch.float64)
    student[1] = student[0]
    _, teacher, _ = batch(8, size=5)
    labels = torch.tensor([0, 0, 1, 2, 3])
    first_only = torch.tensor([0, 1, 2])
    expected = comparison_matching(student[first_only], teacher[first_only], labels[first_only])
    actual = comparison_matching(student, teacher, labels, max_impostors=1)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    two = comparison_matching(student[:4], teacher[:4], labels[:4])
    torch.testing.assert_close(
        comparison_matching(student, teacher, labels, max_impostors=2), two, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("margin", "max_impostors"), SOME_WINDOWS)
def test_collapsed_student_has_loss_and_gradient_zero(margin, max_impostors, dtype):
    """All distances are 0: no negative is farther than a positive, so there is no tuple."""
    student = torch.randn(1, 6, generator=torch.Generator().manual_seed(0)).expand(12, 6).to(dtype)
    _, teacher, labels = batch(4, size=12)
    loss, gradient = loss_and_gradient(
        comparison_matching, student, teacher.to(dtype), labels, margin=margin, max_impostors=max_impostors
    )
    assert loss.item() == 0.0
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_collapsed_teacher():
    student, teacher, labels = batch(9)
    expected, gradient = assert_same(student, teacher[:1].expand_as(teacher), labels)
    assert expected > 0
    assert gradient.abs().max() > 0


def test_classes_collapsed_to_their_centres():
    """Every positive is at distance 0: all negatives are impostors, the gradient stays finite."""
    centres = batch(6, size=4)[0]
    labels = torch.tensor([0, 1, 2, 3] * 4)
    assert_same(centres[labels], batch(6)[1], labels)
    assert_same(centres[labels], batch(6)[1], labels, max_impostors=2)


@pytest.mark.parametrize("spread", [1e-2, 1e-3, 1e-4, 1e-5, 1e-6])
@pytest.mark.parametrize(("margin", "max_impostors"), [(None, None), (None, 3)])
def test_almost_collapsed_student(margin, max_impostors, spread, monkeypatch):
    """All directions are within a small angle of one another; their comparison is as exact as any."""
    monkeypatch.setattr(reference, "SAME_DISTANCE", 1e-14)
    tolerance = 1e-5  # relative to the greatest gradient, which grows as 1 / spread
    for seed in range(4):
        student, teacher, labels = batch(seed)
        student = student[:1] + spread * student
        assert_same(student, teacher, labels, tolerance, margin=margin, max_impostors=max_impostors)


@pytest.mark.parametrize("spread", [1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5])
def test_equal_distances_are_equal_at_every_scale(spread):
    """Positive and negative lie left and right of the anchor, equally far: that is no tuple. The other
    order of the pair is one, for any rotation of the three."""
    teacher = batch(28, size=3)[1]
    for angle in torch.linspace(0.0, 6.0, 25, dtype=torch.float64).tolist():
        angles = angle + spread * torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64)
        student = torch.stack((angles.cos(), angles.sin()), dim=1)
        assert len(reference.comparison_tuples(student, torch.tensor([0, 0, 1]))) == 1
        assert_same(student, teacher, torch.tensor([0, 0, 1]), 1e-5)
