"""Asymmetric metric learning against its loops."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from refilled.objectives import asymmetric_contrastive, asymmetric_triplet

from . import reference_contrastive as slow
from .test_logits import loss_and_gradient

BOTH = [(f, getattr(slow, f.__name__)) for f in (asymmetric_contrastive, asymmetric_triplet)]
OURS = [ours for ours, _ in BOTH]


def case(seed, size=9, dim=5, classes=3, dtype=torch.float64):
    """Student and teacher [B, d], half alike so that margins matter, and labels [B]."""
    generator = torch.Generator().manual_seed(seed)
    student, teacher = torch.randn(2, size, dim, generator=generator, dtype=torch.float64) + 0.5
    labels = torch.randint(0, classes, (size,), generator=generator)
    return (2 * teacher + student).to(dtype), teacher.to(dtype), labels


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("size", "classes"), [(1, 1), (2, 2), (5, 1), (6, 50), (9, 3), (16, 4)])
@pytest.mark.parametrize("with_itself", [True, False])
@pytest.mark.parametrize(("ours", "expected_by"), BOTH)
def test_equals_reference(ours, expected_by, with_itself, size, classes, dtype):
    """One image, one class, (nearly) every image a class of its own, and the usual."""
    student, teacher, labels = case(size, size, classes=classes, dtype=dtype)
    options = {"labels": labels, "with_itself": with_itself}
    loss, gradient = loss_and_gradient(ours, student, teacher, **options)
    expected, wanted = loss_and_gradient(expected_by, student.double(), teacher.double(), **options)
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-10}
    assert loss.dtype == gradient.dtype == dtype
    torch.testing.assert_close(loss.double(), expected, **tolerance)
    torch.testing.assert_close(gradient.double(), wanted, **tolerance)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    st.sampled_from(BOTH), st.integers(0, 999), st.integers(1, 7), st.integers(1, 4), st.floats(0.05, 2.0),
    st.integers(1, 9), st.booleans(),
)  # fmt: skip
def test_any_sizes_and_options(both, seed, size, classes, margin, negatives, with_itself):
    student, teacher, labels = case(seed, size, classes=classes)
    options = {"labels": labels, "margin": margin, "negatives": negatives, "with_itself": with_itself}
    found, expected = (loss_and_gradient(f, student, teacher, **options) for f in both)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)


def test_two_classes_by_hand():
    """One anchor at 45 degrees from both others, one that is where its positive is."""
    teacher = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    student = torch.tensor([[3.0, 3.0], [0.0, 5.0]], dtype=torch.float64)
    labels, squared = torch.tensor([0, 1]), 2 - 2**0.5
    contrastive = asymmetric_contrastive(student, teacher, labels, margin=0.9)
    assert contrastive.item() == pytest.approx((squared / 2 + (0.9 - squared**0.5) ** 2 / 2) / 2, rel=1e-12)
    assert asymmetric_triplet(student, teacher, labels).item() == pytest.approx(0.1 / 2, rel=1e-12)


def test_the_teachers_own_embeddings_attract_no_more():
    student, _, labels = case(1)
    far_apart = torch.eye(9, dtype=torch.float64)
    loss, gradient = loss_and_gradient(
        asymmetric_contrastive, far_apart, far_apart.clone(), labels=torch.arange(9)
    )
    assert loss.item() == pytest.approx(0, abs=1e-12)
    assert gradient.abs().max() < 1e-12
    assert asymmetric_contrastive(student, student.flip(0), labels) > 0.01


@pytest.mark.parametrize("ours", OURS)
def test_collapsed_and_dead_embeddings_stay_finite(ours):
    _, teacher, labels = case(2)
    for student in (torch.zeros(9, 5), torch.ones(9, 5), teacher[:1].expand(9, 5).clone()):
        for guide in (teacher, torch.zeros(9, 5), torch.ones(9, 5)):
            loss, gradient = loss_and_gradient(ours, student, guide, labels=labels)
            assert loss.isfinite()
            assert gradient.isfinite().all()
            assert gradient.abs().max() < 1e3


@pytest.mark.parametrize("ours", OURS)
def test_lengths_do_not_matter(ours):
    student, teacher, labels = case(3)
    expected = ours(student, teacher, labels)
    lengths = torch.rand(9, 1, dtype=torch.float64) + 0.1
    torch.testing.assert_close(ours(student * lengths, 50 * teacher, labels), expected)


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision(ours, dtype, autocast):
    student, teacher, labels = case(4, dtype=dtype)
    leaf = student.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = ours(leaf, teacher, labels)
    loss.backward()
    expected, wanted = loss_and_gradient(ours, student.double(), teacher.double(), labels=labels)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(leaf.grad.double(), wanted, rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("ours", OURS)
def test_gradient_goes_to_the_student_only(ours):
    student, teacher, labels = case(5, size=5)
    student.requires_grad_()
    teacher.requires_grad_()
    ours(student, teacher, labels).backward()
    assert teacher.grad is None
    assert torch.autograd.gradcheck(lambda x: ours(x, teacher, labels), (student,))


@pytest.mark.parametrize("ours", OURS)
def test_no_images(ours):
    assert ours(torch.ones(0, 3), torch.ones(0, 3), torch.ones(0, dtype=torch.int64)) == 0


@pytest.mark.parametrize("ours", OURS)
def test_wrong_input(ours):
    student, teacher, labels = case(6)
    with pytest.raises(ValueError, match=r"one shape.*\[9, 5\] and \[9, 4\]"):
        ours(student, teacher[:, :4], labels)
    with pytest.raises(ValueError, match="labels"):
        ours(student, teacher, labels[:, None])
    with pytest.raises(ValueError, match=r"margin.*0"):
        ours(student, teacher, labels, margin=0.0)
    with pytest.raises(ValueError, match=r"negatives.*0"):
        ours(student, teacher, labels, negatives=0)
