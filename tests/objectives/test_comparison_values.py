"""Comparison matching: equal to the loop over all tuples, in loss and gradient, wherever that is defined."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from refilled.objectives import comparison, comparison_matching

from .comparison_cases import SOME_WINDOWS, WINDOWS, assert_same, batch, loss_and_gradient

# --- equality on random batches ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("margin", "max_impostors"), SOME_WINDOWS)
@pytest.mark.parametrize("taus", [(0.5, 0.5), (0.5, 10.0), (10.0, 0.5), (1.0, 2.0), (4.0, 4.0), (10.0, 10.0)])
def test_equals_reference_at_usual_temperatures(taus, margin, max_impostors, dtype):
    student, teacher, labels = batch(int(10 * taus[0] + taus[1]), dtype=dtype)
    options = {"tau_student": taus[0], "tau_teacher": taus[1], "margin": margin}
    expected, _ = assert_same(student, teacher, labels, max_impostors=max_impostors, **options)
    assert expected > 0


@pytest.mark.parametrize(("margin", "max_impostors"), WINDOWS)
def test_equals_reference_for_every_window(margin, max_impostors):
    for seed, dim in ((0, 3), (1, 16)):
        student, teacher, labels = batch(seed, dim=dim)
        assert_same(student, teacher, labels, margin=margin, max_impostors=max_impostors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("margin", "max_impostors"), SOME_WINDOWS)
@pytest.mark.parametrize("taus", [(0.05, 0.05), (0.05, 2.0), (1.0, 0.05), (0.004, 0.004)])
def test_equals_reference_at_small_temperatures(taus, margin, max_impostors, dtype):
    """The bound of the method is 1e-3 at temperature 0.05; the same as elsewhere holds."""
    student, teacher, labels = batch(7, dtype=dtype)
    options = {"tau_student": taus[0], "tau_teacher": taus[1], "margin": margin}
    assert_same(student, teacher, labels, max_impostors=max_impostors, **options)


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize(
    ("margin", "max_impostors"), [(None, None), (0.05, None), (None, 1), (None, 2), (0.3, 2)]
)
@pytest.mark.parametrize("taus", [(0.005, 0.005), (0.02, 0.5), (0.5, 0.01)])
def test_windows_of_tiny_terms_do_not_cancel(taus, margin, max_impostors, dim):
    """In few dimensions distances spread from 0 to 2: exp(-D / tau) covers hundreds of decades, and a
    window far from the anchor holds only terms that vanish beside the rest of the row."""
    student, teacher, labels = batch(dim, size=24, dim=dim, classes=3)
    options = {"tau_student": taus[0], "tau_teacher": taus[1], "margin": margin}
    assert_same(student, teacher, labels, max_impostors=max_impostors, **options)


def test_far_window_of_tiny_terms_by_hand():
    """An anchor, a positive almost opposite, one impostor opposite, and many negatives close by whose
    terms are 10^170 times as large."""
    angles = torch.tensor([0.0, 2.8, 3.1, *torch.linspace(0.01, 0.2, 30).tolist()], dtype=torch.float64)
    student = torch.stack((angles.cos(), angles.sin()), dim=1)
    teacher = torch.stack(((angles * 0.9).cos(), (angles * 0.9).sin()), dim=1)
    labels = torch.tensor([0, 0, 1, *range(2, 32)])
    for options in ({"max_impostors": 1}, {"margin": 0.2}, {}):
        assert_same(student, teacher, labels, tau_student=0.005, tau_teacher=0.005, **options)


def test_a_larger_batch():
    student, teacher, labels = batch(3, size=70, dim=5, classes=7, dtype=torch.float32)
    assert_same(student, teacher, labels, margin=0.4, max_impostors=9)
    assert_same(student, teacher, labels)


def test_three_images_by_hand():
    """Anchor at 0°, positive at 60°, negative at 180°: distances 1 and 2; as seen from the positive the
    negative is sqrt(3) away. The teacher has them at 90°, 90° and 90° of each other."""
    root = math.sqrt(3.0)
    student = torch.tensor([[5.0, 0.0], [0.5, root / 2], [-1.0, 0.0]], dtype=torch.float64)
    teacher = torch.eye(3, dtype=torch.float64) * 7
    labels = torch.tensor([4, 4, -9])

    def divergence(to_positive: float, to_negative: float, tau: float) -> float:
        q = 1.0 / (1.0 + math.exp((to_positive - to_negative) / tau))
        return 0.5 * math.log(0.5 / q) + 0.5 * math.log(0.5 / (1.0 - q))

    expected = (divergence(1.0, 2.0, 0.7) + divergence(1.0, root, 0.7)) / 2
    assert comparison_matching(student, teacher, labels, tau_student=0.7).item() == pytest.approx(
        expected, 1e-12
    )
    # A bound of 0.8 leaves only the second tuple (sqrt(3) - 1 = 0.73).
    bounded = comparison_matching(student, teacher, labels, tau_student=0.7, margin=0.8)
    assert bounded.item() == pytest.approx(divergence(1.0, root, 0.7), 1e-12)


# --- properties -------------------------------------------------------------------------------------


@st.composite
def small_batches(draw, numbers):
    """Student, teacher and labels of up to 9 images in up to 3 dimensions, numbers of one kind."""
    size, dim = draw(st.integers(0, 9)), draw(st.integers(1, 3))

    def matrix(width: int) -> Tensor:
        rows = [[draw(numbers) for _ in range(width)] for _ in range(size)]
        return torch.tensor(rows, dtype=torch.float64).reshape(size, width)

    labels = torch.tensor([draw(st.integers(0, 3)) for _ in range(size)], dtype=torch.int64)
    return matrix(dim), matrix(2), labels


small_settings = st.fixed_dictionaries(
    {
        "tau_student": st.sampled_from([0.05, 0.5, 1.0, 10.0]),
        "tau_teacher": st.sampled_from([0.05, 0.5, 2.0]),
        "margin": st.sampled_from([None, 0.1, 0.5, math.sqrt(2.0)]),
        "max_impostors": st.sampled_from([None, 1, 2, 4]),
    }
)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(small_batches(st.integers(-2, 2)), small_settings)
def test_equals_reference_for_any_labels_and_ties(data, options):
    assert_same(*data, **options)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(small_batches(st.floats(-1e3, 1e3, width=32)), small_settings, st.sampled_from([1, 20, 2**24]))
def test_never_negative_and_always_finite(data, options, elements):
    student, teacher, labels = data
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "_BLOCK_ELEMENTS", elements)
        loss, gradient = loss_and_gradient(comparison_matching, student, teacher, labels, **options)
    assert loss.isfinite()
    assert loss.item() >= -1e-12
    assert gradient.isfinite().all()
