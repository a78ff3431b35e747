"""Direction matching against a loop."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from refilled.objectives import direction_matching

from .test_logits import loss_and_gradient


def slow(predicted, teacher, weights=None):
    """1 - cosine, row by row."""
    total = 0.0
    for row, (a, b) in enumerate(zip(predicted, teacher)):
        weight = 1.0 if weights is None else float(weights[row])
        total = total + weight * (1 - (a * b).sum() / ((a * a).sum() * (b * b).sum()).sqrt())
    return total / len(predicted)


def pair(seed, size=6, dim=5, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(size, dim, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("size", [1, 2, 9])
def test_equals_the_loop(size, dtype, tolerance):
    predicted, teacher = pair(size, size, dtype=dtype)
    loss, gradient = loss_and_gradient(direction_matching, predicted, teacher)
    expected, expected_gradient = loss_and_gradient(slow, predicted.double(), teacher.double())
    assert loss.dtype == gradient.dtype == dtype
    torch.testing.assert_close(loss.double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=10 * tolerance, atol=10 * tolerance)


def test_weights_count_rows():
    predicted, teacher = pair(3)
    weights = torch.tensor([0.0, 1.0, 2.5, 0.3, 7.0, 1.0])
    loss, gradient = loss_and_gradient(lambda p, t: direction_matching(p, t, weights), predicted, teacher)
    expected = loss_and_gradient(lambda p, t: slow(p, t, weights), predicted, teacher)
    torch.testing.assert_close((loss, gradient), expected, rtol=1e-9, atol=1e-12)
    assert not gradient[0].any()
    ones = direction_matching(predicted, teacher, torch.ones(6))
    torch.testing.assert_close(ones, direction_matching(predicted, teacher))
    with pytest.raises(ValueError, match=r"weights must have shape \[B\] with B = 6 rows, not \[5\]"):
        direction_matching(predicted, teacher, torch.ones(5))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_lengths_do_not_count(seed, one, other):
    predicted, teacher = pair(seed)
    found = direction_matching(one * predicted, other * teacher)
    assert float(found) == pytest.approx(float(direction_matching(predicted, teacher)), abs=1e-9)
    assert 0 <= float(found) <= 2


def test_its_ends():
    z = torch.randn(4, 3)
    assert float(direction_matching(z, 2 * z)) == pytest.approx(0, abs=1e-6)
    assert float(direction_matching(z, -z)) == pytest.approx(2, abs=1e-6)


def test_zeros_have_no_direction_and_no_gradient():
    predicted, teacher = torch.zeros(2, 3, requires_grad=True), torch.ones(2, 3)
    loss = direction_matching(predicted, teacher)
    loss.backward()
    assert float(loss.detach()) == 1
    assert not predicted.grad.any()
    assert math.isfinite(float(direction_matching(torch.ones(2, 3), torch.zeros(2, 3))))


def test_an_empty_batch_is_no_error():
    assert float(direction_matching(torch.zeros(0, 3), torch.zeros(0, 3))) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    predicted, teacher = pair(0, dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16):
        found = direction_matching(predicted, teacher)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, direction_matching(predicted.float(), teacher.float()))


def test_the_teacher_gets_no_gradient():
    predicted, teacher = (z.requires_grad_() for z in pair(0))
    direction_matching(predicted, teacher).backward()
    assert teacher.grad is None


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"\[4, 3\] and \[4, 2\]"):
        direction_matching(torch.zeros(4, 3), torch.zeros(4, 2))
