"""Local distillation over the classes in the batch against its loop."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from refilled.objectives import kd, local_kd, present_classes

from . import reference

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
TEMPERATURES = [(1.0, 2.0), (0.1, 1.0), (4.0, 0.5), (10.0, 10.0)]


def logits(seed: int, size: int = 8, classes: int = 6, present: int = 4, dtype=torch.float64):
    """Logits of student and teacher [B, C] and labels from the first few classes."""
    generator = torch.Generator().manual_seed(seed)
    student = 3 * torch.randn(size, classes, generator=generator, dtype=torch.float64)
    teacher = 3 * torch.randn(size, classes, generator=generator, dtype=torch.float64)
    return student.to(dtype), teacher.to(dtype), torch.randint(0, present, (size,), generator=generator)


def loss_and_gradient(function, student: Tensor, *arguments, **options):
    """Value and gradient with respect to the student."""
    student = student.detach().clone().requires_grad_()
    loss = function(student, *arguments, **options)
    loss.backward()
    return loss.detach(), student.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("tau_student", "tau_teacher"), TEMPERATURES)
def test_equals_reference(tau_student, tau_teacher, weighted, dtype):
    for seed, size, present in ((0, 8, 4), (1, 1, 6), (2, 12, 1), (3, 40, 6)):
        student, teacher, labels = logits(seed, size=size, present=present, dtype=dtype)
        options = {"tau_student": tau_student, "tau_teacher": tau_teacher}
        if weighted:
            options["weights"] = torch.rand(size, generator=torch.Generator().manual_seed(seed))
        loss, gradient = loss_and_gradient(local_kd, student, teacher, labels, **options)
        expected, expected_gradient = loss_and_gradient(
            reference.local_kd, student.double(), teacher.double(), labels, **options
        )
        assert loss.dtype == gradient.dtype == dtype
        tolerance = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
        torch.testing.assert_close(loss.double(), expected, **tolerance)
        torch.testing.assert_close(gradient.double(), expected_gradient, **tolerance)


def test_two_classes_by_hand():
    """Classes 0 and 2 of 3; the teacher's log-odds are 2 / 2 = 1, the student's 3."""
    student = torch.tensor([[3.0, 99.0, 0.0], [3.0, -99.0, 0.0]], dtype=torch.float64)
    teacher = torch.tensor([[2.0, -50.0, 0.0], [2.0, 50.0, 0.0]], dtype=torch.float64)
    p, q = 1 / (1 + math.exp(-1)), 1 / (1 + math.exp(-3))
    expected = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    assert local_kd(student, teacher, torch.tensor([2, 0])).item() == pytest.approx(expected, rel=1e-12)


def test_present_classes():
    assert present_classes(torch.tensor([3, 1, 3]), 5).tolist() == [False, True, False, True, False]
    assert present_classes(torch.zeros(0, dtype=torch.int64), 2).tolist() == [False, False]
    assert present_classes(torch.tensor([0]), 1).tolist() == [True]


def test_absent_classes_get_no_gradient_and_have_no_say():
    student, teacher, labels = logits(4, classes=9)
    loss, gradient = loss_and_gradient(local_kd, student, teacher, labels)
    absent = ~present_classes(labels, 9)
    assert absent.any()
    assert torch.equal(gradient[:, absent], torch.zeros_like(gradient[:, absent]))
    assert (gradient[:, ~absent] != 0).all()
    student[:, absent] += 1e4
    teacher[:, absent] -= 1e4
    other_loss, other_gradient = loss_and_gradient(local_kd, student, teacher, labels)
    torch.testing.assert_close(other_loss, loss)
    torch.testing.assert_close(other_gradient, gradient)


def test_equals_the_loss_over_only_the_classes_present():
    student, teacher, labels = logits(5, classes=7)
    columns = torch.tensor(reference.classes_in_batch(labels))
    renamed = torch.searchsorted(columns, labels)
    torch.testing.assert_close(
        local_kd(student, teacher, labels), local_kd(student[:, columns], teacher[:, columns], renamed)
    )


def test_equals_plain_kd_where_all_classes_are_present():
    student, teacher, _ = logits(6, size=6)
    local = local_kd(student, teacher, torch.arange(6), tau_student=3.0, tau_teacher=3.0)
    torch.testing.assert_close(9.0 * local, kd(student, teacher, tau=3.0))


def test_one_class_in_the_batch_gives_zero():
    student, teacher, _ = logits(7)
    loss, gradient = loss_and_gradient(local_kd, student, teacher, torch.full((8,), 2))
    assert loss.item() == 0.0
    assert not gradient.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_identical_logits_give_zero(dtype):
    student, _, labels = logits(8, dtype=dtype)
    loss, gradient = loss_and_gradient(local_kd, student, student, labels, tau_student=2.0, tau_teacher=2.0)
    assert loss.item() == 0.0
    assert gradient.abs().max() < 1e-7


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("tau", [0.05, 1.0])
def test_extreme_logits_stay_finite(tau, dtype):
    student, teacher, labels = logits(9)
    student, teacher = (student.sign() * 1e4).to(dtype), (teacher.sign() * 1e4).to(dtype)
    loss, gradient = loss_and_gradient(local_kd, student, teacher, labels, tau_student=tau, tau_teacher=tau)
    expected = reference.local_kd(
        student.double(), teacher.double(), labels, tau_student=tau, tau_teacher=tau
    )
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision(dtype, autocast):
    student, teacher, labels = logits(10, dtype=dtype)
    weights = torch.rand(8, generator=torch.Generator().manual_seed(0)).to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss, gradient = loss_and_gradient(local_kd, student, teacher, labels, weights=weights)
    expected, expected_gradient = loss_and_gradient(
        reference.local_kd, student.double(), teacher.double(), labels, weights=weights.double()
    )
    assert loss.dtype == torch.float32
    assert gradient.dtype == dtype
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_autocast_changes_nothing():
    student, teacher, labels = logits(11, dtype=torch.float32)
    expected, expected_gradient = loss_and_gradient(local_kd, student, teacher, labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, gradient = loss_and_gradient(local_kd, student, teacher, labels)
    assert torch.equal(loss, expected)
    assert torch.equal(gradient, expected_gradient)


def test_gradcheck():
    student, teacher, labels = logits(12, size=4)
    weights = torch.tensor([0.1, 1.0, 0.0, 0.7], dtype=torch.float64)
    student.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: local_kd(x, teacher, labels, weights=weights), (student,))


def test_gradient_goes_to_the_student_only():
    student, teacher, labels = logits(13)
    weights = torch.rand(8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for tensor in (student, teacher, weights):
        tensor.requires_grad_()
    local_kd(student, teacher, labels, weights=weights).backward()
    assert student.grad is not None
    assert teacher.grad is None
    assert weights.grad is None


def test_weights_are_a_factor_for_each_image():
    student, teacher, labels = logits(14)
    loss, gradient = loss_and_gradient(local_kd, student, teacher, labels)
    half_loss, half_gradient = loss_and_gradient(
        local_kd, student, teacher, labels, weights=torch.full((8,), 0.5)
    )
    torch.testing.assert_close(half_loss, loss / 2)
    torch.testing.assert_close(half_gradient, gradient / 2)
    one_out = torch.ones(8)
    one_out[3] = 0.0
    _, gradient_without = loss_and_gradient(local_kd, student, teacher, labels, weights=one_out)
    assert not gradient_without[3].any()
    rest = [0, 1, 2, 4, 5, 6, 7]
    torch.testing.assert_close(gradient_without[rest], gradient[rest])


def test_shifts_of_the_logits_do_not_matter():
    student, teacher, labels = logits(15)
    shift = torch.arange(8, dtype=torch.float64)[:, None] * 10
    torch.testing.assert_close(
        local_kd(student + shift, teacher - shift, labels), local_kd(student, teacher, labels)
    )


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=10),
    st.integers(0, 1000),
    st.floats(0.1, 20),
    st.floats(0.1, 20),
)
def test_any_labels_and_temperatures(labels, seed, tau_student, tau_teacher):
    student, teacher, _ = logits(seed, size=len(labels), classes=5)
    target = torch.tensor(labels)
    options = {"tau_student": tau_student, "tau_teacher": tau_teacher}
    loss, gradient = loss_and_gradient(local_kd, student, teacher, target, **options)
    expected, expected_gradient = loss_and_gradient(reference.local_kd, student, teacher, target, **options)
    assert loss.item() >= -1e-12
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("student", "teacher", "labels", "message"),
    [
        ((4, 3), (4, 2), (4,), r"\[4, 3\] and \[4, 2\]"),
        ((4, 3), (1, 3), (4,), r"\[4, 3\] and \[1, 3\]"),
        ((4,), (4,), (4,), r"\[4\] and \[4\]"),
        ((4, 3), (4, 3), (5,), r"5 labels.*\[4, 3\]"),
        ((4, 3), (4, 3), (4, 1), r"labels.*\[4, 1\]"),
    ],
)
def test_wrong_shapes(student, teacher, labels, message):
    with pytest.raises(ValueError, match=message):
        local_kd(torch.ones(student), torch.ones(teacher), torch.zeros(labels, dtype=torch.int64))


@pytest.mark.parametrize("shape", [(), (1,), (7,), (8, 1), (1, 8), (8, 8)])
def test_wrong_shape_of_weights(shape):
    student, teacher, labels = logits(16)
    with pytest.raises(ValueError, match="weights") as error:
        local_kd(student, teacher, labels, weights=torch.ones(shape))
    assert str(list(shape)) in str(error.value)


@pytest.mark.parametrize("name", ["tau_student", "tau_teacher"])
@pytest.mark.parametrize("value", [0.0, -2.0, math.nan])
def test_wrong_temperatures(name, value):
    with pytest.raises(ValueError, match=f"{name}.*{value}"):
        local_kd(*logits(17), **{name: value})
