"""Distillation over shared classes, against a loop."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from refilled.objectives import kd, shared_kd

from .test_logits import loss_and_gradient

HERE, THERE = torch.tensor([0, 3, 4]), torch.tensor([5, 1, 0])


def logits(seed, size=7, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    draws = (torch.randn(size, classes, generator=generator, dtype=torch.float64) for classes in (6, 5))
    return tuple((3 * draw).to(dtype) for draw in draws)


def slow(student, teacher, here=HERE, there=THERE, tau=2.0):
    total = student.sum() * 0
    for ours, theirs in zip(student, teacher):
        whole = [math.exp(float(value)) for value in theirs]
        trust = sum(whole[k] for k in here.tolist()) / sum(whole)
        soft = [math.exp(float(theirs[k]) / tau) for k in here.tolist()]
        log_sum = torch.stack([ours[k] / tau for k in there.tolist()]).exp().sum().log()
        for value, column in zip(soft, there.tolist()):
            p = value / sum(soft)
            total = total + tau * tau * trust * p * (math.log(p) - (ours[column] / tau - log_sum))
    return total / len(student)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("size", [1, 7])
@pytest.mark.parametrize("tau", [1.0, 2.0])
def test_equals_the_loop(size, tau, dtype, tolerance):
    student, teacher = logits(size, size, dtype)
    found = loss_and_gradient(lambda a, b: shared_kd(a, b, HERE, THERE, tau=tau), student, teacher)
    wanted = loss_and_gradient(lambda a, b: slow(a, b, tau=tau), student.double(), teacher.double())
    assert found[0].dtype == dtype
    for mine, theirs in zip(found, wanted):
        torch.testing.assert_close(mine.double(), theirs, rtol=tolerance, atol=tolerance)


def test_with_the_same_classes_it_is_plain_distillation():
    student, _ = logits(1)
    teacher, _ = logits(2)
    every = torch.arange(6)
    torch.testing.assert_close(
        shared_kd(student, teacher, every, every, tau=4.0), kd(student, teacher, tau=4.0)
    )


@given(st.integers(0, 1000), st.permutations(range(3)))
@settings(max_examples=30, deadline=None)
def test_the_order_of_pairs_does_not_count(seed, order):
    student, teacher = logits(seed)
    mixed = shared_kd(student, teacher, HERE[list(order)], THERE[list(order)])
    torch.testing.assert_close(mixed, shared_kd(student, teacher, HERE, THERE))


def test_an_image_of_another_class_counts_for_nothing():
    student, teacher = logits(3)
    teacher[:, 1] = 100.0  # it is sure of a class that the student does not know
    assert float(shared_kd(student, teacher, HERE, THERE)) == pytest.approx(0.0, abs=1e-12)


def test_classes_of_the_student_alone_are_left_as_they_are():
    student, teacher = logits(4)
    _, gradient = loss_and_gradient(lambda a, b: shared_kd(a, b, HERE, THERE), student, teacher)
    assert (gradient[:, [2, 3, 4]] == 0).all()
    assert (gradient[:, THERE] != 0).all()


def test_nothing_shared_and_no_images():
    student, teacher = logits(5)
    none = torch.empty(0, dtype=torch.int64)
    for loss, gradient in (
        loss_and_gradient(lambda a, b: shared_kd(a, b, none, none), student, teacher),
        loss_and_gradient(lambda a, b: shared_kd(a, b, HERE, THERE), student[:0], teacher[:0]),
        loss_and_gradient(lambda a, b: shared_kd(a, b, HERE[:1], THERE[:1]), student, teacher),  # one class
    ):
        assert loss == 0
        assert (gradient == 0).all()


def test_half_precision():
    student, teacher = logits(6, dtype=torch.bfloat16)
    loss, gradient = loss_and_gradient(lambda a, b: shared_kd(a, b, HERE, THERE), student, teacher)
    assert loss.dtype == torch.float32
    wanted = shared_kd(student.double(), teacher.double(), HERE, THERE)
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-4, atol=1e-4)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(2, 3), torch.zeros(3, 3), HERE, THERE), "of the same images"),
        ((torch.zeros(2, 6), torch.zeros(2, 5), HERE, THERE[:2]), "come in pairs"),
    ],
)
def test_wrong_shapes_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        shared_kd(*arguments)


def test_a_temperature_must_be_positive():
    with pytest.raises(ValueError, match="tau"):
        shared_kd(*logits(0), HERE, THERE, tau=0.0)
