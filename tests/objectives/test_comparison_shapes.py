"""Comparison matching for batches at the edge, in blocks of anchors, and for arguments that are wrong."""

import math

import pytest
import torch

from refilled.objectives import comparison, comparison_matching

from .comparison_cases import SOME_WINDOWS, assert_same, batch, loss_and_gradient

# --- batches at the edge ----------------------------------------------------------------------------


@pytest.mark.parametrize(("margin", "max_impostors"), SOME_WINDOWS)
@pytest.mark.parametrize(
    "labels", [[], [3], [1, 1], [1, 2], [5] * 8, list(range(8))], ids=["0", "1", "2 alike", "2", "one", "own"]
)
def test_batches_without_a_tuple(labels, margin, max_impostors):
    student, teacher, _ = batch(1, size=len(labels), dtype=torch.float32)
    loss, gradient = loss_and_gradient(
        comparison_matching,
        student,
        teacher,
        torch.tensor(labels, dtype=torch.int64),
        margin=margin,
        max_impostors=max_impostors,
    )
    assert loss.shape == ()
    assert loss.dtype == torch.float32
    assert loss.item() == 0.0
    assert gradient.shape == student.shape
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_negatives_all_nearer_than_the_positive_make_no_tuple():
    student = torch.tensor([[1.0, 0.0], [-1.0, 0.1], [0.6, 0.8]])
    loss, gradient = loss_and_gradient(
        comparison_matching, student, batch(0, size=3, dtype=torch.float32)[1], torch.tensor([0, 0, 1])
    )
    assert loss.item() == 0.0
    assert not gradient.any()


def test_zero_embeddings():
    """A zero row has no direction: it stands at the origin, distance 1 to all others, without gradient."""
    student, teacher, labels = batch(11, size=14, dim=3)
    student[[0, 3, 4]] = 0.0
    teacher[[3, 9]] = 0.0
    for margin, max_impostors in SOME_WINDOWS:
        _, gradient = assert_same(student, teacher, labels, margin=margin, max_impostors=max_impostors)
        assert not gradient[[0, 3, 4]].any()
    loss, gradient = loss_and_gradient(comparison_matching, torch.zeros(6, 4), torch.zeros(6, 2), labels[:6])
    assert loss.item() == 0.0
    assert not gradient.any()


def test_one_dimension():
    """In one dimension every unit vector is +1 or -1."""
    student, teacher, labels = batch(12, dim=1)
    assert_same(student, teacher, labels)
    assert_same(student, teacher, labels, max_impostors=2, margin=0.5)


# --- shapes, blocks, arguments ----------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 2**25], ids=["made again", "kept"])
@pytest.mark.parametrize("elements", [1, 17, 16 * 5, 16 * 15])
@pytest.mark.parametrize(("margin", "max_impostors"), SOME_WINDOWS)
def test_blocks_of_anchors_equal_one_block(margin, max_impostors, elements, kept, monkeypatch):
    student, teacher, labels = batch(25)
    student[3] = student[5]
    options = {"margin": margin, "max_impostors": max_impostors, "tau_student": 0.2}
    loss, gradient = loss_and_gradient(comparison_matching, student, teacher, labels, **options)
    monkeypatch.setattr(comparison, "_BLOCK_ELEMENTS", elements)
    monkeypatch.setattr(comparison, "_KEPT_ELEMENTS", kept)
    block_loss, block_gradient = loss_and_gradient(comparison_matching, student, teacher, labels, **options)
    torch.testing.assert_close(block_loss, loss, rtol=0, atol=1e-13)
    torch.testing.assert_close(block_gradient, gradient, rtol=0, atol=1e-12)


def test_blocks_without_a_tuple(monkeypatch):
    monkeypatch.setattr(comparison, "_BLOCK_ELEMENTS", 1)
    for labels in ([], [0], [0, 0, 0], [0, 1, 2]):
        student, teacher, _ = batch(26, size=len(labels))
        target = torch.tensor(labels, dtype=torch.int64)
        loss, gradient = loss_and_gradient(comparison_matching, student, teacher, target)
        assert loss.item() == 0.0
        assert not gradient.any()


@pytest.mark.parametrize(("margin", "max_impostors"), SOME_WINDOWS)
def test_shapes_do_not_depend_on_values(margin, max_impostors):
    """Tensors without values pass through: no shape and no branch depends on what they hold."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        student = torch.empty(12, 5, requires_grad=True)
        loss = comparison_matching(
            student,
            torch.empty(12, 7),
            torch.empty(12, dtype=torch.int64),
            margin=margin,
            max_impostors=max_impostors,
        )
        loss.backward()
        assert loss.shape == ()
        assert student.grad.shape == (12, 5)


@pytest.mark.parametrize(
    ("student", "teacher", "labels", "message"),
    [
        ((4, 3), (4, 3), (4, 1), r"labels.*\[4, 1\]"),
        ((4, 3), (4, 3), (), r"labels.*\[\]"),
        ((5, 3), (4, 3), (4,), r"student.*4.*\[5, 3\]"),
        ((4, 3), (5, 2), (4,), r"teacher.*4.*\[5, 2\]"),
        ((4,), (4, 3), (4,), r"student.*\[4\]"),
        ((4, 3, 1), (4, 3), (4,), r"student.*\[4, 3, 1\]"),
        ((4, 3), (4, 2, 2, 2), (4,), r"teacher.*\[4, 2, 2, 2\]"),
    ],
)
def test_wrong_shapes(student, teacher, labels, message):
    with pytest.raises(ValueError, match=message):
        comparison_matching(torch.ones(student), torch.ones(teacher), torch.zeros(labels, dtype=torch.int64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tau_student": 0.0}, r"tau_student.*not 0\.0"),
        ({"tau_student": -1.0}, r"tau_student.*not -1\.0"),
        ({"tau_teacher": 0.001}, r"tau_teacher.*not 0\.001"),
        ({"tau_teacher": math.nan}, r"tau_teacher.*not nan"),
        ({"margin": 0.0}, r"margin.*not 0\.0"),
        ({"margin": -0.2}, r"margin.*not -0\.2"),
        ({"margin": math.nan}, r"margin.*not nan"),
        ({"max_impostors": 0}, r"max_impostors.*not 0"),
        ({"max_impostors": -3}, r"max_impostors.*not -3"),
    ],
)
def test_wrong_settings(options, message):
    student, teacher, labels = batch(0)
    with pytest.raises(ValueError, match=message):
        comparison_matching(student, teacher, labels, **options)
