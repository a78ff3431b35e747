"""Comparison matching: what may change without a change of the loss, and what is left alone."""

import pytest
import torch

from refilled.objectives import comparison, comparison_matching

from .comparison_cases import SOME_WINDOWS, batch, loss_and_gradient


def test_no_gradient_to_the_teacher():
    student, teacher, labels = batch(17)
    student.requires_grad_()
    teacher.requires_grad_()
    comparison_matching(student, teacher, labels).backward()
    assert teacher.grad is None
    assert student.grad.abs().max() > 0


def test_without_a_gradient_at_all(monkeypatch):
    student, teacher, labels = batch(17)
    expected = comparison_matching(student, teacher, labels)
    assert not expected.requires_grad
    monkeypatch.setattr(comparison, "_BLOCK_ELEMENTS", 1)
    with torch.no_grad():
        torch.testing.assert_close(comparison_matching(student.requires_grad_(), teacher, labels), expected)


@pytest.mark.parametrize(("margin", "max_impostors"), SOME_WINDOWS)
def test_an_equal_teacher_gives_zero(margin, max_impostors):
    student, _, labels = batch(18)
    options = {"tau_student": 0.3, "tau_teacher": 0.3, "margin": margin, "max_impostors": max_impostors}
    loss, gradient = loss_and_gradient(comparison_matching, student, 2.0 * student, labels, **options)
    assert abs(loss.item()) < 1e-12
    assert gradient.abs().max() < 1e-12


@pytest.mark.parametrize(("margin", "max_impostors"), SOME_WINDOWS)
def test_lengths_of_embeddings_do_not_matter(margin, max_impostors):
    student, teacher, labels = batch(19)
    factors = torch.logspace(-6, 6, len(labels), dtype=torch.float64)[:, None]
    options = {"margin": margin, "max_impostors": max_impostors}
    loss, gradient = loss_and_gradient(comparison_matching, student, teacher, labels, **options)
    scaled_loss, scaled_gradient = loss_and_gradient(
        comparison_matching, student * factors, teacher * factors.flip(0), labels, **options
    )
    torch.testing.assert_close(scaled_loss, loss, rtol=0, atol=1e-12)
    torch.testing.assert_close(scaled_gradient * factors, gradient, rtol=0, atol=1e-12)
    assert (gradient * student).sum(dim=1).abs().max() < 1e-12  # so none of it changes a length


def test_rotations_of_embeddings_do_not_matter():
    student, teacher, labels = batch(20)
    rotation = torch.linalg.qr(batch(21, size=8, dim=8)[0]).Q
    loss, gradient = loss_and_gradient(comparison_matching, student, teacher, labels)
    wide = torch.cat((teacher, torch.zeros_like(teacher)), dim=1)
    turned_loss, turned_gradient = loss_and_gradient(comparison_matching, student @ rotation, wide, labels)
    torch.testing.assert_close(turned_loss, loss, rtol=0, atol=1e-12)
    torch.testing.assert_close(turned_gradient, gradient @ rotation, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("margin", "max_impostors"), SOME_WINDOWS)
def test_order_of_the_batch_and_names_of_classes_do_not_matter(margin, max_impostors):
    student, teacher, labels = batch(22)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(22))
    names = torch.tensor([-5, 1000, 2**40, 0])
    options = {"margin": margin, "max_impostors": max_impostors}
    loss, gradient = loss_and_gradient(comparison_matching, student, teacher, labels, **options)
    other_loss, other_gradient = loss_and_gradient(
        comparison_matching, student[order], teacher[order], names[labels[order]], **options
    )
    torch.testing.assert_close(other_loss, loss, rtol=0, atol=1e-12)
    torch.testing.assert_close(other_gradient, gradient[order], rtol=0, atol=1e-12)


def test_inputs_are_left_as_they_are():
    student, teacher, labels = batch(23)
    copies = student.clone(), teacher.clone(), labels.clone()
    comparison_matching(student, teacher, labels, margin=0.2, max_impostors=3)
    for value, copy in zip((student, teacher, labels), copies):
        assert torch.equal(value, copy)


def test_unbounded_windows_equal_no_window():
    student, teacher, labels = batch(24)
    loss, gradient = loss_and_gradient(comparison_matching, student, teacher, labels)
    wide_loss, wide_gradient = loss_and_gradient(
        comparison_matching, student, teacher, labels, margin=2.1, max_impostors=len(labels)
    )
    torch.testing.assert_close(wide_loss, loss, rtol=0, atol=1e-13)
    torch.testing.assert_close(wide_gradient, gradient, rtol=0, atol=1e-13)
