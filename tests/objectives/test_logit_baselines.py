"""Decoupled, correlating and standardised distillation of logits against their loops."""

import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from refilled.objectives import dist, dkd, kd, standardised_kd

from . import reference_baselines as slow
from .test_logits import logits, loss_and_gradient

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}
NAMES = ["dkd", "dist", "standardised_kd"]


def pair(name, size, classes, seed=0):
    """The objective and its loop, with labels where it wants them."""
    ours, expected_by = (
        {"dkd": dkd, "dist": dist, "standardised_kd": standardised_kd}[name],
        getattr(slow, name),
    )
    if name != "dkd":
        return ours, expected_by
    labels = torch.randint(0, classes, (size,), generator=torch.Generator().manual_seed(seed))
    return functools.partial(ours, labels=labels), functools.partial(expected_by, labels=labels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tau", [None, 0.5, 4.0])
@pytest.mark.parametrize(("size", "classes"), [(1, 5), (2, 5), (8, 1), (8, 2), (3, 50)])
@pytest.mark.parametrize("name", NAMES)
def test_equals_reference(name, size, classes, tau, dtype):
    ours, expected_by = pair(name, size, classes)
    student, teacher = logits(size, size, classes, dtype)
    options = {} if tau is None else {"tau": tau}
    loss, gradient = loss_and_gradient(ours, student, teacher, **options)
    expected, expected_gradient = loss_and_gradient(
        expected_by, student.double(), teacher.double(), **options
    )
    assert loss.dtype == gradient.dtype == dtype
    tolerance = {"rtol": TOLERANCE[dtype], "atol": 16 * TOLERANCE[dtype]}  # tau squared
    torch.testing.assert_close(loss.double(), expected, **tolerance)
    torch.testing.assert_close(gradient.double(), expected_gradient, **tolerance)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.sampled_from(NAMES), st.integers(0, 1000), st.integers(1, 5), st.integers(1, 5), st.floats(0.5, 10))
def test_never_negative_and_equal_to_reference(name, seed, size, classes, tau):
    ours, expected_by = pair(name, size, classes, seed)
    student, teacher = logits(seed, size, classes)
    loss = ours(student, teacher, tau=tau)
    assert loss.item() >= -1e-9
    torch.testing.assert_close(loss, expected_by(student, teacher, tau=tau), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 8])
def test_identical_logits_give_zero(name, dtype, size):
    student, _ = logits(2, size, dtype=dtype)
    loss, gradient = loss_and_gradient(pair(name, size, 5)[0], student, student.clone())
    assert abs(loss.item()) < 1e-6
    assert gradient.abs().max() < 1e-5


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0.0, 0.1, -1e4])
def test_equal_logits_stay_finite(name, value):
    student, teacher = torch.full((8, 5), value), logits(3, dtype=torch.float32)[1]
    for a, b in ((student, teacher), (teacher, student), (student, student)):
        loss, gradient = loss_and_gradient(pair(name, 8, 5)[0], a, b)
        assert loss.isfinite()
        assert gradient.isfinite().all()
    assert abs(pair(name, 8, 5)[0](student, student).item()) < 1e-6


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("tau", [0.05, 1.0, 4.0])
def test_extreme_logits_stay_finite(name, tau, dtype):
    ours, expected_by = pair(name, 8, 5)
    student, teacher = (x.sign().mul(1e4).to(dtype) for x in logits(4))
    loss, gradient = loss_and_gradient(ours, student, teacher, tau=tau)
    expected = expected_by(student.double(), teacher.double(), tau=tau)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(name, dtype, autocast):
    ours, expected_by = pair(name, 8, 5)
    student, teacher = logits(5, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss, gradient = loss_and_gradient(ours, student, teacher)
    expected, expected_gradient = loss_and_gradient(expected_by, student.double(), teacher.double())
    assert loss.dtype == torch.float32
    assert gradient.dtype == dtype
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=torch.finfo(dtype).eps, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_goes_to_the_student_only(name):
    ours, _ = pair(name, 4, 5)
    student, teacher = (x.requires_grad_() for x in logits(6, size=4))
    ours(student, teacher).backward()
    assert student.grad.any()
    assert teacher.grad is None
    assert torch.autograd.gradcheck(lambda x: ours(x, teacher), (student,))


@pytest.mark.parametrize("name", NAMES)
def test_shifts_of_an_images_logits_do_not_matter(name):
    ours, _ = pair(name, 8, 5)
    student, teacher = logits(7)
    shift = torch.arange(8, dtype=torch.float64)[:, None]
    torch.testing.assert_close(ours(student + shift, teacher - shift), ours(student, teacher))


def test_scales_of_standardised_logits_do_not_matter():
    student, teacher = logits(8)
    scale = torch.arange(1, 9, dtype=torch.float64)[:, None]
    torch.testing.assert_close(
        standardised_kd(student * scale, teacher / scale), standardised_kd(student, teacher)
    )


def test_scales_of_correlated_logits_are_temperatures():
    """DIST ignores scale and shift of probabilities; a scale of logits is that of a temperature."""
    student, teacher = logits(9)
    torch.testing.assert_close(dist(student / 3, teacher / 3), dist(student, teacher, tau=3.0) / 9)
    mixed = (0.3 * student.softmax(1) + 0.7 / 5).log()  # less sure by the same affine map of every image
    torch.testing.assert_close(dist(mixed, teacher), dist(student, teacher))
    assert dist(mixed, student).item() == pytest.approx(0, abs=1e-12)


def test_parts_of_decoupled_distillation_make_up_plain_distillation():
    """KD = TCKD + (1 - p) NCKD, with p the teacher's probability of the image's class."""
    student, teacher = logits(10)
    labels = torch.arange(8) % 5
    total = 0.0
    for i in range(8):
        row, p = slice(i, i + 1), (teacher[i] / 3).softmax(0)[labels[i]].item()
        total += dkd(student[row], teacher[row], labels[row], tau=3.0, alpha=1.0, beta=1 - p).item() / 8
    assert total == pytest.approx(kd(student, teacher, tau=3.0).item(), rel=1e-10)
    assert dkd(student, teacher, labels, tau=3.0, alpha=1.0, beta=1.0) > kd(student, teacher, tau=3.0)


def test_weights_are_factors_of_their_parts():
    student, teacher = logits(11)
    labels = torch.arange(8) % 5
    for ours, names in ((functools.partial(dkd, labels=labels), "alpha beta"), (dist, "beta gamma")):
        a, b = names.split()
        first, second = (ours(student, teacher, **{a: x, b: 1 - x}) for x in (1.0, 0.0))
        torch.testing.assert_close(ours(student, teacher, **{a: 2.0, b: 5.0}), 2 * first + 5 * second)
        assert min(first, second) > 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("student", "teacher"), [((4, 3), (4, 2)), ((4, 3), (1, 3)), ((4,), (4,))])
def test_wrong_shapes(name, student, teacher):
    with pytest.raises(ValueError, match="one shape") as error:
        pair(name, 4, 3)[0](torch.ones(student), torch.ones(teacher))
    assert f"{list(student)} and {list(teacher)}" in str(error.value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tau", [0.0, -4.0, math.nan])
def test_wrong_temperatures(name, tau):
    with pytest.raises(ValueError, match=f"tau.*{tau}"):
        pair(name, 8, 5)[0](*logits(12), tau=tau)
