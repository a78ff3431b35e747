"""Comparison matching in half precision and under autocast, and its gradient against differences."""

import pytest
import torch

from refilled.objectives import comparison, comparison_matching

from . import reference
from .comparison_cases import SOME_WINDOWS, batch, loss_and_gradient


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("margin", "max_impostors"), SOME_WINDOWS)
def test_half_precision_is_exact_up_to_the_last_rounding(margin, max_impostors, dtype):
    student, teacher, labels = batch(13, dtype=dtype)
    options = {"margin": margin, "max_impostors": max_impostors, "tau_student": 0.1}
    loss, gradient = loss_and_gradient(comparison_matching, student, teacher, labels, **options)
    expected, expected_gradient = loss_and_gradient(
        reference.comparison_matching, student.double(), teacher.double(), labels, **options
    )
    assert loss.dtype == torch.float32
    assert gradient.dtype == dtype
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    one_unit = torch.finfo(dtype).eps
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=one_unit, atol=1e-6)


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_autocast_changes_nothing(half, dtype, blocks, monkeypatch):
    if blocks:
        monkeypatch.setattr(comparison, "_BLOCK_ELEMENTS", 40)
    student, teacher, labels = batch(14, dtype=dtype)
    options = {"margin": 0.3, "max_impostors": 4}
    expected, expected_gradient = loss_and_gradient(comparison_matching, student, teacher, labels, **options)
    with torch.autocast("cpu", dtype=half):
        loss, gradient = loss_and_gradient(comparison_matching, student, teacher, labels, **options)
    assert loss.dtype == expected.dtype
    assert torch.equal(loss, expected)
    assert torch.equal(gradient, expected_gradient)


def test_teacher_of_another_precision():
    student, teacher, labels = batch(15)
    loss = comparison_matching(student.float(), teacher.half(), labels)
    expected = reference.comparison_matching(student.float().double(), teacher.half().double(), labels)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize(("margin", "max_impostors"), SOME_WINDOWS)
def test_gradcheck(margin, max_impostors):
    student, teacher, labels = batch(16, size=7, dim=3, classes=2)
    student.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: comparison_matching(
            x, teacher, labels, tau_student=0.3, margin=margin, max_impostors=max_impostors
        ),
        (student,),
    )
