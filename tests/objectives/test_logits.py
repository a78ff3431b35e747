"""Plain distillation of logits against its loop."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from refilled.objectives import kd

from . import reference

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def logits(seed: int, size: int = 8, classes: int = 5, dtype=torch.float64) -> tuple[Tensor, Tensor]:
    """Logits of student and teacher [B, C]."""
    generator = torch.Generator().manual_seed(seed)
    student, teacher = 4 * torch.randn(2, size, classes, generator=generator, dtype=torch.float64)
    return student.to(dtype), teacher.to(dtype)


def loss_and_gradient(function, student: Tensor, teacher: Tensor, **options):
    """Value and gradient with respect to the student."""
    student = student.detach().clone().requires_grad_()
    loss = function(student, teacher, **options)
    loss.backward()
    return loss.detach(), student.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tau", [0.1, 0.5, 1.0, 4.0, 10.0])
@pytest.mark.parametrize(("size", "classes"), [(1, 5), (8, 1), (8, 2), (3, 100)])
def test_equals_reference(size, classes, tau, dtype):
    student, teacher = logits(size, size, classes, dtype)
    loss, gradient = loss_and_gradient(kd, student, teacher, tau=tau)
    expected, expected_gradient = loss_and_gradient(reference.kd, student.double(), teacher.double(), tau=tau)
    assert loss.dtype == gradient.dtype == dtype
    tolerance = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype] * max(1.0, tau**2)}
    torch.testing.assert_close(loss.double(), expected, **tolerance)
    torch.testing.assert_close(gradient.double(), expected_gradient, **tolerance)


def test_one_image_by_hand():
    """Log-odds 8 and 0 at temperature 4: teacher sigmoid(2), student 1/2."""
    p = 1 / (1 + math.exp(-2))
    expected = 16 * (p * math.log(2 * p) + (1 - p) * math.log(2 * (1 - p)))
    student, teacher = torch.zeros(1, 2, dtype=torch.float64), torch.tensor([[8.0, 0.0]], dtype=torch.float64)
    assert kd(student, teacher).item() == pytest.approx(expected, rel=1e-12)


def test_temperature_4_unless_told():
    student, teacher = logits(0)
    assert kd(student, teacher) == kd(student, teacher, tau=4.0)


def test_gradient_of_high_temperatures_does_not_fade():
    """With tau squared the gradient tends to (student - teacher) / C of centred logits, over B."""
    student, teacher = logits(1)
    _, gradient = loss_and_gradient(kd, student, teacher, tau=1e4)
    gap = student - teacher
    limit = (gap - gap.mean(dim=1, keepdim=True)) / gap.numel()
    torch.testing.assert_close(gradient, limit, rtol=0, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_identical_logits_give_zero(dtype):
    student, _ = logits(2, dtype=dtype)
    loss, gradient = loss_and_gradient(kd, student, student.clone())
    assert loss.item() == 0.0
    assert gradient.abs().max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("tau", [0.05, 1.0, 4.0])
def test_extreme_logits_stay_finite(tau, dtype):
    student, teacher = (x.sign().mul(1e4).to(dtype) for x in logits(3))
    loss, gradient = loss_and_gradient(kd, student, teacher, tau=tau)
    expected = reference.kd(student.double(), teacher.double(), tau=tau)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype, autocast):
    student, teacher = logits(4, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss, gradient = loss_and_gradient(kd, student, teacher)
    expected, expected_gradient = loss_and_gradient(reference.kd, student.double(), teacher.double())
    assert loss.dtype == torch.float32
    assert gradient.dtype == dtype
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_autocast_changes_nothing():
    student, teacher = logits(5, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = kd(student, teacher)
    assert torch.equal(inside, kd(student, teacher))


def test_gradient_goes_to_the_student_only():
    student, teacher = logits(6, size=3)
    student.requires_grad_()
    teacher.requires_grad_()
    kd(student, teacher).backward()
    assert teacher.grad is None
    assert student.grad.sum(dim=1).abs().max() < 1e-12
    assert torch.autograd.gradcheck(lambda x: kd(x, teacher.detach(), tau=2.0), (student,))


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.integers(0, 1000), st.integers(1, 6), st.integers(1, 6), st.floats(0.1, 20))
def test_never_negative_and_equal_to_reference(seed, size, classes, tau):
    student, teacher = logits(seed, size, classes)
    loss = kd(student, teacher, tau=tau)
    assert loss.item() >= -1e-10
    torch.testing.assert_close(loss, reference.kd(student, teacher, tau=tau), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("student", "teacher"), [((4, 3), (4, 2)), ((4, 3), (1, 3)), ((4,), (4,)), ((2, 2, 2), (2, 2, 2))]
)
def test_wrong_shapes(student, teacher):
    with pytest.raises(ValueError, match="one shape") as error:
        kd(torch.ones(student), torch.ones(teacher))
    assert f"{list(student)} and {list(teacher)}" in str(error.value)


@pytest.mark.parametrize("tau", [0.0, -4.0, math.nan])
def test_wrong_temperatures(tau):
    with pytest.raises(ValueError, match=f"tau.*{tau}"):
        kd(*logits(7), tau=tau)
