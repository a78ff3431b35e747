"""Relations within a batch against their loops."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from refilled.objectives import relations, rkd_angle, rkd_distance, similarity_preserving

from . import reference_baselines as slow
from .test_logits import loss_and_gradient

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}
BOTH = [(f, getattr(slow, f.__name__)) for f in (rkd_distance, rkd_angle, similarity_preserving)]
OURS = [ours for ours, _ in BOTH]


def embeddings(seed, size=7, dim=4, dtype=torch.float64, scale=3.0):
    """Student [B, d] and teacher [B, d + 3], away from the origin."""
    generator = torch.Generator().manual_seed(seed)
    student = scale * torch.randn(size, dim, generator=generator, dtype=torch.float64) + 1
    teacher = torch.randn(size, dim + 3, generator=generator, dtype=torch.float64) + 1
    return student.to(dtype), teacher.to(dtype)


def assert_same(ours, expected_by, student, teacher, tolerance):
    loss, gradient = loss_and_gradient(ours, student, teacher)
    expected, expected_gradient = loss_and_gradient(expected_by, student.double(), teacher.double())
    torch.testing.assert_close(loss.double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=tolerance, atol=tolerance)
    return loss, gradient


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize(("ours", "expected_by"), BOTH)
def test_equals_reference(ours, expected_by, size, dtype):
    loss, gradient = assert_same(ours, expected_by, *embeddings(size, size, dtype=dtype), TOLERANCE[dtype])
    assert loss.dtype == gradient.dtype == dtype


@settings(deadline=None, max_examples=25, derandomize=True)
@given(st.sampled_from(BOTH), st.integers(0, 1000), st.integers(1, 6), st.integers(1, 5), st.floats(0.1, 30))
def test_any_sizes(both, seed, size, dim, scale):
    assert_same(*both, *embeddings(seed, size, dim, scale=scale), 1e-8)


@pytest.mark.parametrize(("ours", "expected_by"), BOTH)
@pytest.mark.parametrize("who", ["student", "teacher", "both"])
def test_equal_embeddings(ours, expected_by, who):
    student, teacher = embeddings(1)
    for x in {"student": [student], "teacher": [teacher], "both": [student, teacher]}[who]:
        x[3] = x[0]
        x[5] = x[0]
    assert_same(ours, expected_by, student, teacher, 1e-9)


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("value", [0.0, 0.1, 1e4])
def test_all_embeddings_equal(ours, value):
    _, teacher = embeddings(2)
    loss, gradient = loss_and_gradient(ours, torch.full((7, 4), value), teacher)
    assert loss.isfinite()
    assert gradient.isfinite().all()
    same = torch.full((7, 4), value)
    assert ours(same, same) == 0


@pytest.mark.parametrize("ours", OURS)
def test_no_images_and_one(ours):
    assert ours(torch.ones(0, 3), torch.ones(0, 5)) == 0
    loss, gradient = loss_and_gradient(ours, torch.randn(1, 3), torch.randn(1, 5))
    assert loss == 0
    assert gradient.abs().max() < 1e-6


def test_two_embeddings_have_one_distance():
    student, teacher = embeddings(3, size=2)
    loss, gradient = loss_and_gradient(rkd_distance, student, teacher)
    assert loss.item() == pytest.approx(0, abs=1e-12)
    assert gradient.abs().max() < 1e-12


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_teachers_own_embeddings_give_zero(ours, dtype):
    student, _ = embeddings(4, dtype=dtype)
    assert ours(student, student.clone()).item() == 0


@pytest.mark.parametrize("ours", OURS)
def test_scale_and_rotation_do_not_matter(ours):
    student, teacher = embeddings(5)
    rotation = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64)).Q
    expected = ours(student, teacher)
    assert expected > 0.01
    torch.testing.assert_close(ours(1e3 * student @ rotation, teacher), expected)
    torch.testing.assert_close(ours(1e-3 * student, 50 * teacher), expected)
    if ours is not similarity_preserving:
        torch.testing.assert_close(ours(student + 7, teacher - 3), expected)


@pytest.mark.parametrize("ours", OURS)
def test_order_of_the_images_does_not_matter(ours):
    student, teacher = embeddings(6)
    order = torch.randperm(7)
    torch.testing.assert_close(ours(student[order], teacher[order]), ours(student, teacher))
    assert (ours(student[order.roll(1)], teacher[order]) - ours(student, teacher)).abs() > 1e-4


@pytest.mark.parametrize("block", [1, 2, 3, 6, 7, 50])
def test_blocks_of_anchors_change_nothing(block):
    student, teacher = embeddings(7)
    loss, gradient = loss_and_gradient(rkd_angle, student, teacher)
    other, other_gradient = loss_and_gradient(rkd_angle, student, teacher, block=block)
    torch.testing.assert_close(other, loss, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(other_gradient, gradient, rtol=1e-12, atol=1e-12)


def test_a_batch_of_256_is_taken_in_small_blocks(monkeypatch):
    seen = []
    cosines = relations._cosines

    def spy(*arguments):
        found = cosines(*arguments)
        seen.append(found.numel())
        return found

    monkeypatch.setattr(relations, "_cosines", spy)
    loss_and_gradient(rkd_angle, *embeddings(8, size=256, dtype=torch.float32))
    assert max(seen) <= relations._BLOCK_ELEMENTS
    assert sum(seen) == 4 * 256**3  # both networks, forward and once more for the backward pass


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision(ours, dtype, autocast):
    student, teacher = embeddings(9, dtype=dtype)
    leaf = student.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = ours(leaf, teacher)
    loss.backward()  # outside of it, as in any loop
    gradient = leaf.grad
    expected, expected_gradient = loss_and_gradient(ours, student.double(), teacher.double())
    assert loss.dtype == torch.float32
    assert gradient.dtype == dtype
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("ours", OURS)
def test_autocast_changes_nothing(ours):
    student, teacher = embeddings(10, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = ours(student, teacher)
    assert torch.equal(inside, ours(student, teacher))


@pytest.mark.parametrize("ours", OURS)
def test_gradient_goes_to_the_student_only(ours):
    student, teacher = (x.requires_grad_() for x in embeddings(11, size=4))
    ours(student, teacher).backward()
    assert student.grad.any()
    assert teacher.grad is None
    assert torch.autograd.gradcheck(lambda x: ours(x, teacher), (student,))


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize(("student", "teacher"), [((4, 3), (5, 3)), ((4,), (4,)), ((4, 2, 2), (4, 4))])
def test_wrong_shapes(ours, student, teacher):
    with pytest.raises(ValueError, match="share B") as error:
        ours(torch.ones(student), torch.ones(teacher))
    assert f"{list(student)} and {list(teacher)}" in str(error.value)


def test_wrong_block():
    with pytest.raises(ValueError, match=r"block.*0"):
        rkd_angle(*embeddings(12), block=0)
