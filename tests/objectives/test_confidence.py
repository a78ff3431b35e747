"""Weights of trust: PL, head and gap weight against their loops."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from refilled.objectives import confidence_weights, gap_weights

from . import reference

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def scores_and_labels(seed: int, size: int = 9, classes: int = 6, dtype=torch.float64):
    """Scores [B, C] and labels from the first four classes."""
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(size, classes, generator=generator, dtype=torch.float64)
    return scores.to(dtype), torch.randint(0, 4, (size,), generator=generator)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("min_max", [False, True])
@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("tau", [0.1, 1.0, 4.0])
def test_confidence_equals_reference(tau, local, min_max, dtype):
    for seed, size in ((0, 9), (1, 1), (2, 2), (3, 30)):
        scores, labels = scores_and_labels(seed, size=size, dtype=dtype)
        given_labels = labels if local else None
        weights = confidence_weights(scores, given_labels, tau=tau, min_max=min_max)
        expected = reference.confidence_weights(scores.double(), given_labels, tau=tau, min_max=min_max)
        assert weights.dtype == dtype
        assert weights.shape == (size,)
        assert weights.min() >= 0
        assert weights.max() <= 1
        # A small spread magnifies rounding in the min-max scaling.
        tolerance = TOLERANCE[dtype] * (100 if min_max and size == 2 else 1)
        torch.testing.assert_close(weights.double(), expected, rtol=0, atol=tolerance)


def test_confidence_by_hand():
    """Certain: 2 sigmoid(0) = 1. Undecided between two classes: 2 sigmoid(log(1/2)) = 2/3, of four 2/5."""
    scores = torch.tensor([[500.0, 0.0, 0.0, 0.0], [7.0, 7.0, -500.0, -500.0], [3.0, 3.0, 3.0, 3.0]])
    torch.testing.assert_close(confidence_weights(scores), torch.tensor([1.0, 2 / 3, 2 / 5]))
    torch.testing.assert_close(confidence_weights(scores, min_max=True), torch.tensor([1.0, 4 / 9, 0.0]))
    # Over classes 1 and 2 only, the first and last rows are undecided.
    local = confidence_weights(scores, torch.tensor([1, 2, 2]))
    torch.testing.assert_close(local, torch.tensor([2 / 3, 1.0, 2 / 3]))


def test_absent_classes_have_no_say():
    scores, labels = scores_and_labels(4)
    expected = confidence_weights(scores, labels)
    scores[:, 4:] = 1e4
    assert torch.equal(confidence_weights(scores, labels), expected)


def test_one_class_in_the_batch_is_certain():
    scores, _ = scores_and_labels(5)
    one = torch.full((9,), 3)
    assert torch.equal(confidence_weights(scores, one), torch.ones(9, dtype=torch.float64))
    assert torch.equal(confidence_weights(scores, one, min_max=True), torch.ones(9, dtype=torch.float64))


@pytest.mark.parametrize("classes", [1, 2, 3, 137])
def test_head_with_its_own_number_of_classes(classes):
    scores, _ = scores_and_labels(6, classes=classes)
    weights = confidence_weights(scores, tau=2.0, min_max=True)
    expected = reference.confidence_weights(scores, tau=2.0, min_max=True)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-12)


def test_min_max_spans_0_to_1_and_keeps_the_order():
    scores, _ = scores_and_labels(7)
    plain, scaled = confidence_weights(scores), confidence_weights(scores, min_max=True)
    assert scaled.min() == 0
    assert scaled.max() == 1
    assert torch.equal(plain.argsort(), scaled.argsort())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 5])
def test_min_max_of_equal_values_is_1(size, dtype):
    row = torch.tensor([[0.3, -1.7, 2.0]], dtype=dtype)
    weights = confidence_weights(row.expand(size, 3), min_max=True)
    assert torch.equal(weights, torch.ones_like(weights))


def test_min_max_of_almost_equal_values_still_reaches_1():
    """Whether a spread of rounding only counts as none or is scaled up: the greatest weight is 1."""
    scores = torch.tensor([[2.0, 0.0], [2.0 + 1e-15, 0.0]], dtype=torch.float64)
    assert confidence_weights(scores, min_max=True).max() == 1


@pytest.mark.parametrize("min_max", [False, True])
@pytest.mark.parametrize("tau", [0.05, 1.0])
def test_extreme_scores_stay_finite(tau, min_max):
    scores, labels = scores_and_labels(8, dtype=torch.float32)
    for given_labels in (None, labels):
        weights = confidence_weights(scores.sign() * 1e4, given_labels, tau=tau, min_max=min_max)
        assert weights.isfinite().all()
        assert weights.min() >= 0
        assert weights.max() <= 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_confidence_in_half_precision_and_autocast(dtype):
    scores, labels = scores_and_labels(9, dtype=dtype)
    expected = reference.confidence_weights(scores.double(), labels)
    plain = confidence_weights(scores, labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = confidence_weights(scores, labels)
    assert plain.dtype == inside.dtype == torch.float32
    assert torch.equal(plain, inside)
    torch.testing.assert_close(plain.double(), expected, rtol=0, atol=1e-6)


def test_no_gradient_through_any_weight():
    scores, labels = scores_and_labels(10)
    scores.requires_grad_()
    for weights in (
        confidence_weights(scores),
        confidence_weights(scores, labels, min_max=True),
        gap_weights(scores, scores.flip(0), labels),
    ):
        assert not weights.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("tau_student", "tau_teacher"), [(1.0, 2.0), (0.2, 1.0), (5.0, 0.3)])
def test_gap_equals_reference(tau_student, tau_teacher, dtype):
    for seed, size in ((11, 9), (12, 1), (13, 30)):
        student, labels = scores_and_labels(seed, size=size, dtype=dtype)
        teacher, _ = scores_and_labels(seed + 100, size=size, dtype=dtype)
        options = {"tau_student": tau_student, "tau_teacher": tau_teacher}
        weights = gap_weights(student, teacher, labels, **options)
        expected = reference.gap_weights(student.double(), teacher.double(), labels, **options)
        assert weights.dtype == dtype
        torch.testing.assert_close(weights.double(), expected, rtol=0, atol=TOLERANCE[dtype])


def test_gap_of_equal_opinions_is_1_and_of_opposite_ones_near_0():
    student, labels = scores_and_labels(14)
    same = gap_weights(student, student, labels, tau_student=2.0, tau_teacher=2.0)
    assert torch.equal(same, torch.ones_like(same))
    opposite = gap_weights(100 * student, -100 * student, labels)
    assert opposite.max() < 1e-3
    assert opposite.min() >= 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gap_in_half_precision_and_autocast(dtype):
    student, labels = scores_and_labels(15, dtype=dtype)
    teacher, _ = scores_and_labels(16, dtype=dtype)
    expected = reference.gap_weights(student.double(), teacher.double(), labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        weights = gap_weights(student, teacher, labels)
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.double(), expected, rtol=0, atol=1e-6)


def test_gap_never_exceeds_1_by_rounding():
    """Teacher and student that differ by rounding only: their divergence is 0, or barely above."""
    generator = torch.Generator().manual_seed(17)
    teacher = 30 * torch.randn(2000, 20, generator=generator)
    student = teacher + 1e-5 * torch.randn(2000, 20, generator=generator)
    labels = torch.arange(2000) % 20
    weights = gap_weights(student, teacher, labels, tau_student=1.0, tau_teacher=1.0)
    assert weights.max().item() <= 1.0


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=8),
    st.integers(0, 1000),
    st.floats(0.05, 20),
    st.booleans(),
)
def test_any_labels_and_temperatures(labels, seed, tau, min_max):
    scores, _ = scores_and_labels(seed, size=len(labels), classes=4)
    target = torch.tensor(labels)
    plain = confidence_weights(scores, target, tau=tau)
    torch.testing.assert_close(
        plain, reference.confidence_weights(scores, target, tau=tau), rtol=0, atol=1e-12
    )
    lower_bound = 2.0 / (1.0 + len(set(labels)))  # where all classes of the batch are equally likely
    weights = confidence_weights(scores, target, tau=tau, min_max=min_max)
    assert plain.min() >= lower_bound - 1e-12
    assert weights.min() >= 0
    assert weights.max() == 1 if min_max else weights.max() <= 1


@pytest.mark.parametrize("shape", [(4,), (2, 3, 4), ()])
def test_wrong_shape_of_scores(shape):
    with pytest.raises(ValueError, match="scores") as error:
        confidence_weights(torch.ones(shape))
    assert str(list(shape)) in str(error.value)


@pytest.mark.parametrize("labels", [(3,), (9, 1), ()])
def test_wrong_shape_of_labels(labels):
    scores, _ = scores_and_labels(18)
    with pytest.raises(ValueError, match="labels") as error:
        confidence_weights(scores, torch.zeros(labels, dtype=torch.int64))
    assert "9" in str(error.value) or str(list(labels)) in str(error.value)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_wrong_temperatures(value):
    scores, labels = scores_and_labels(19)
    with pytest.raises(ValueError, match=f"tau.*{value}"):
        confidence_weights(scores, tau=value)
    with pytest.raises(ValueError, match=f"tau_teacher.*{value}"):
        gap_weights(scores, scores, labels, tau_teacher=value)


def test_wrong_shapes_for_gap():
    scores, labels = scores_and_labels(20)
    with pytest.raises(ValueError, match=r"\[9, 6\] and \[9, 5\]"):
        gap_weights(scores, scores[:, :5], labels)
    with pytest.raises(ValueError, match=r"8 labels.*\[9, 6\]"):
        gap_weights(scores, scores, labels[:8])
