"""The second task against its loops, and which of the teacher's answers are taught."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from refilled.objectives import contrastive_prediction, contrastive_scores, error_levels, selective_kd

from . import reference_contrastive as slow
from .test_logits import logits, loss_and_gradient


def pictures(seed, size=4, dim=5, dtype=torch.float64):
    """Embeddings of turned [3B, d] and normal images [B, d], and from which the turned ones are made [3B]."""
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(size, dim, generator=generator, dtype=torch.float64)
    turned = normal.repeat(3, 1) + torch.randn(3 * size, dim, generator=generator, dtype=torch.float64)
    return turned.to(dtype), normal.to(dtype), torch.arange(size).repeat(3)


def value_and_gradients(function, turned, normal, origins):
    both = [x.detach().clone().requires_grad_() for x in (turned, normal)]
    loss = function(*both, origins)
    loss.backward()
    return [x.double() for x in (loss.detach(), *(x.grad for x in both))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_prediction_equals_reference(size, dtype):
    turned, normal, origins = pictures(size, size, dtype=dtype)
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-10}
    found = value_and_gradients(contrastive_prediction, turned, normal, origins)
    expected = value_and_gradients(slow.contrastive_prediction, turned.double(), normal.double(), origins)
    torch.testing.assert_close(found, expected, **tolerance)
    scores = slow.contrastive_scores(turned.double(), normal.double())
    torch.testing.assert_close(contrastive_scores(turned, normal).double(), scores, **tolerance)


def test_gradient_of_the_prediction_goes_to_both():
    turned, normal, origins = (x.requires_grad_(x.is_floating_point()) for x in pictures(3, 2))
    assert torch.autograd.gradcheck(lambda a, b: contrastive_prediction(a, b, origins), (turned, normal))


def test_dead_embeddings_have_no_similarity():
    turned, normal, origins = pictures(4)
    assert not contrastive_scores(turned * 0, normal).any()
    loss, gradient = loss_and_gradient(contrastive_prediction, turned * 0, normal, origins=origins)
    assert loss.isfinite()
    assert not gradient.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("wrong_share", [0.0, 0.3, 0.75, 1.0])
@pytest.mark.parametrize("tau", [0.5, 4.0])
@pytest.mark.parametrize(("size", "classes"), [(1, 4), (7, 1), (9, 2), (20, 6)])
def test_selective_kd_equals_reference(size, classes, tau, wrong_share, dtype):
    student, teacher = logits(size, size, classes, dtype)
    options = {"labels": torch.arange(size) % classes, "tau": tau, "wrong_share": wrong_share}
    loss, gradient = loss_and_gradient(selective_kd, student, teacher, **options)
    expected, wanted = loss_and_gradient(slow.selective_kd, student.double(), teacher.double(), **options)
    assert loss.dtype == gradient.dtype == dtype
    tolerance = {"rtol": 2e-5, "atol": 2e-5} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(loss.double(), expected, **tolerance)
    torch.testing.assert_close(gradient.double(), wanted, **tolerance)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.integers(0, 999), st.integers(1, 12), st.integers(1, 5), st.floats(0, 1))
def test_any_sizes(seed, size, classes, wrong_share):
    student, teacher = logits(seed, size, classes)
    labels = torch.randint(0, classes, (size,), generator=torch.Generator().manual_seed(seed))
    options = {"labels": labels, "tau": 1.5, "wrong_share": wrong_share}
    found = loss_and_gradient(selective_kd, student, teacher, **options)
    torch.testing.assert_close(
        found, loss_and_gradient(slow.selective_kd, student, teacher, **options), rtol=1e-9, atol=1e-10
    )


def test_error_levels_by_hand():
    scores = torch.tensor([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0], [3.0, 1.0, 2.0], [1.0, 1.0, 1.0]])
    assert error_levels(scores, torch.tensor([0, 1, 2, 1])).tolist() == [0, 2, 1, 0]


@pytest.mark.parametrize(
    ("share", "kept"), [(0.0, [2]), (0.5, [0, 2, 3]), (0.75, [0, 1, 2, 3]), (1.0, [0, 1, 2, 3, 4])]
)
def test_the_least_wrong_are_taught_first(share, kept):
    """Levels 1, 2, 0, 1, 3: the right one always, then one after the other; share of 4 wrong ones."""
    teacher = torch.zeros(5, 4, dtype=torch.float64)
    for row, level in enumerate((1, 2, 0, 1, 3)):
        teacher[row, 1 : 1 + level] = 1.0
        teacher[row, 0] = 0.5
    student = torch.randn(5, 4, dtype=torch.float64)
    labels = torch.zeros(5, dtype=torch.int64)
    _, gradient = loss_and_gradient(selective_kd, student, teacher, labels=labels, tau=1.0, wrong_share=share)
    assert gradient.abs().sum(1).nonzero()[:, 0].tolist() == kept


def test_ten_wrong_answers_and_a_share_of_seven_tenths():
    teacher = torch.tensor([[0.0, 1.0]]).repeat(10, 1)
    _, gradient = loss_and_gradient(
        selective_kd, torch.zeros(10, 2), teacher, labels=torch.zeros(10, dtype=torch.int64), tau=1.0,
        wrong_share=0.7,
    )  # fmt: skip
    assert gradient.abs().sum(1).count_nonzero() == 7


def test_nothing_kept_gives_zero():
    teacher, labels = torch.tensor([[0.0, 1.0]]), torch.tensor([0])
    loss, gradient = loss_and_gradient(
        selective_kd, torch.tensor([[2.0, 0.0]]), teacher, labels=labels, tau=1.0, wrong_share=0.75
    )
    assert loss == 0
    assert not gradient.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision(dtype, autocast):
    student, teacher = logits(6, 8, 4, dtype)
    labels = torch.arange(8) % 4
    leaf = student.clone().requires_grad_()
    turned, normal, origins = pictures(6, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = selective_kd(leaf, teacher, labels, tau=4.0, wrong_share=0.75)
        prediction = contrastive_prediction(turned, normal, origins)
    loss.backward()
    expected, wanted = loss_and_gradient(
        selective_kd, student.double(), teacher.double(), labels=labels, tau=4.0, wrong_share=0.75
    )
    assert loss.dtype == prediction.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(leaf.grad.double(), wanted, rtol=torch.finfo(dtype).eps, atol=1e-6)
    full = contrastive_prediction(turned.double(), normal.double(), origins)
    assert prediction.item() == pytest.approx(full.item(), rel=1e-5)


def test_gradient_goes_to_the_student_only():
    student, teacher = (x.requires_grad_() for x in logits(7, 5, 3))
    labels = torch.arange(5) % 3
    selective_kd(student, teacher, labels, tau=2.0, wrong_share=0.5).backward()
    assert teacher.grad is None
    assert torch.autograd.gradcheck(
        lambda x: selective_kd(x, teacher, labels, tau=2.0, wrong_share=0.5), (student,)
    )


def test_wrong_input():
    student, teacher = logits(8)
    labels = torch.arange(8) % 5
    with pytest.raises(ValueError, match="one shape"):
        selective_kd(student, teacher[:, :3], labels, tau=1.0, wrong_share=1.0)
    with pytest.raises(ValueError, match=r"wrong_share.*1\.5"):
        selective_kd(student, teacher, labels, tau=1.0, wrong_share=1.5)
    with pytest.raises(ValueError, match=r"tau.*0"):
        selective_kd(student, teacher, labels, tau=0.0, wrong_share=1.0)
    with pytest.raises(ValueError, match=r"share d.*\[12, 5\] and \[4, 3\]"):
        contrastive_scores(pictures(1)[0], pictures(1)[1][:, :3])
    with pytest.raises(ValueError, match="transformed"):
        contrastive_prediction(*pictures(1)[:2], torch.arange(4))
