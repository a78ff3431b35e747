"""Similarities as distributions against their loop."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from refilled.objectives import similarity_distillation

from . import reference_contrastive as slow
from .test_logits import loss_and_gradient


def case(seed, size=4, keys=7, dim=5, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    student, teacher = torch.randn(2, size, dim, generator=generator, dtype=torch.float64)
    others = torch.randn(keys, dim, generator=generator, dtype=torch.float64)
    masks = torch.rand(2, size, keys, generator=generator) < 0.6
    return student.to(dtype), teacher.to(dtype), others.to(dtype), *masks


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "taus", [{}, {"tau_student": 0.1, "tau_teacher": 0.2}, {"tau_teacher": 1e-4}], ids=str
)
@pytest.mark.parametrize("masked", ["nothing", "compared", "similar", "both"])
def test_equals_reference(masked, taus, dtype):
    student, teacher, keys, compared, similar = case(1, dtype=dtype)
    options = dict(taus)
    if masked in ("compared", "both"):
        options["compared"] = compared
    if masked in ("similar", "both"):
        options["similar"] = similar
    loss, gradient = loss_and_gradient(similarity_distillation, student, teacher, keys=keys, **options)
    expected, wanted = loss_and_gradient(
        slow.similarity_distillation, student.double(), teacher.double(), keys=keys.double(), **options
    )
    assert loss.dtype == gradient.dtype == dtype
    tolerance = 2e-5 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(loss.double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(gradient.double(), wanted, rtol=tolerance, atol=tolerance)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.integers(0, 999), st.integers(1, 5), st.integers(0, 6), st.floats(0.02, 2), st.floats(0.02, 2))
def test_any_sizes(seed, size, keys, tau_student, tau_teacher):
    student, teacher, others, compared, similar = case(seed, size, keys)
    options = {
        "keys": others, "compared": compared, "similar": similar,
        "tau_student": tau_student, "tau_teacher": tau_teacher,
    }  # fmt: skip
    found = loss_and_gradient(similarity_distillation, student, teacher, **options)
    expected = loss_and_gradient(slow.similarity_distillation, student, teacher, **options)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)


def test_the_image_itself_is_all_there_is_without_keys():
    student, teacher, keys, compared, _ = case(2)
    assert similarity_distillation(student, teacher, keys[:0]) == 0
    assert similarity_distillation(student, teacher, keys, compared=torch.zeros_like(compared)) == 0


def test_no_similar_key_leaves_the_image_itself():
    """The cross-entropy of telling the own teacher embedding from the keys."""
    student, teacher, keys, _, similar = case(3)
    unit = torch.nn.functional.normalize
    scores = torch.cat(
        [(unit(student) * unit(teacher)).sum(1, keepdim=True), unit(student) @ unit(keys).T], 1
    )
    expected = -(scores / 0.2).log_softmax(1)[:, 0].mean()
    found = similarity_distillation(student, teacher, keys, similar=torch.zeros_like(similar))
    torch.testing.assert_close(found, expected)


def test_least_where_the_student_is_the_teacher():
    _, teacher, keys, _, _ = case(4)
    loss, gradient = loss_and_gradient(
        similarity_distillation, teacher, teacher, keys=keys, tau_student=0.3, tau_teacher=0.3
    )
    assert gradient.abs().max() < 1e-10
    assert similarity_distillation(teacher.flip(0), teacher, keys, tau_student=0.3, tau_teacher=0.3) > loss


def test_dead_embeddings_stay_finite():
    student, teacher, keys, compared, similar = case(5, dtype=torch.float32)
    for s, t, k in ((student * 0, teacher, keys), (student, teacher * 0, keys), (student, teacher, keys * 0)):
        loss, gradient = loss_and_gradient(
            similarity_distillation, s, t, keys=k, compared=compared, similar=similar
        )
        assert loss.isfinite()
        assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision(dtype, autocast):
    student, teacher, keys, _, similar = case(6, dtype=dtype)
    leaf = student.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = similarity_distillation(leaf, teacher, keys, similar=similar)
    loss.backward()
    expected, wanted = loss_and_gradient(
        similarity_distillation, student.double(), teacher.double(), keys=keys.double(), similar=similar
    )
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    torch.testing.assert_close(leaf.grad.double(), wanted, rtol=4 * torch.finfo(dtype).eps, atol=1e-4)


def test_gradient_goes_to_the_student_only():
    student, teacher, keys, compared, similar = (x.clone() for x in case(7))
    for x in (student, teacher, keys):
        x.requires_grad_()
    similarity_distillation(student, teacher, keys).backward()
    assert student.grad.any()
    assert teacher.grad is keys.grad is None

    def of(x):
        return similarity_distillation(x, teacher, keys, compared=compared, similar=similar)

    assert torch.autograd.gradcheck(of, (student,))


def test_wrong_input():
    student, teacher, keys, _, similar = case(8)
    with pytest.raises(ValueError, match="one shape"):
        similarity_distillation(student, teacher[:, :3], keys)
    with pytest.raises(ValueError, match=r"keys.*d = 5.*\[7, 4\]"):
        similarity_distillation(student, teacher, keys[:, :4])
    with pytest.raises(ValueError, match=r"similar.*\[4, 7\], not \[7, 4\]"):
        similarity_distillation(student, teacher, keys, similar=similar.T)
    with pytest.raises(ValueError, match=r"tau_teacher.*0"):
        similarity_distillation(student, teacher, keys, tau_teacher=0.0)
