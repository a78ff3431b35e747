"""Contrast with a memory against its loops, and the drawing of negatives."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from refilled.objectives import draw_others, log_partition, memory_scores, noise_contrast, rows_by_class

from . import reference_contrastive as slow


def case(seed, size=4, images=9, candidates=6, dim=5, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    anchors = torch.randn(size, dim, generator=generator, dtype=torch.float64)
    memory = torch.randn(images, dim, generator=generator, dtype=torch.float64)
    drawn = torch.randint(0, images, (size, candidates), generator=generator)
    return anchors.to(dtype), memory.to(dtype), drawn


def loss_of(scores_by, contrast_by, anchors, memory, candidates, tau=0.07, log_z=None):
    """Value and gradient of the whole contrast."""
    anchors = anchors.detach().clone().requires_grad_()
    scores = scores_by(anchors, memory, candidates, tau=tau)
    log_z = log_partition(scores, len(memory)) if log_z is None else log_z
    loss = contrast_by(scores, log_z, len(memory))
    loss.backward()
    return loss.detach(), anchors.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tau", [0.07, 0.5, 1.0])
@pytest.mark.parametrize(("size", "images", "candidates"), [(1, 2, 2), (4, 9, 6), (3, 5, 40), (8, 100, 20)])
def test_equals_reference(size, images, candidates, tau, dtype):
    anchors, memory, drawn = case(size, size, images, candidates, dtype=dtype)
    loss, gradient = loss_of(memory_scores, noise_contrast, anchors, memory, drawn, tau)
    expected, wanted = loss_of(
        slow.memory_scores, slow.noise_contrast, anchors.double(), memory.double(), drawn, tau
    )
    assert loss.dtype == gradient.dtype == dtype
    tolerance = 5e-5 if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(loss.double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(gradient.double(), wanted, rtol=tolerance, atol=tolerance)


def test_one_negative_by_hand():
    """Scores equal and Z such that P = K / N for both: every decision is an even bet."""
    scores = torch.full((3, 2), 2.0, dtype=torch.float64)
    log_z = torch.tensor(2.0 - math.log(1 / 10), dtype=torch.float64)
    assert noise_contrast(scores, log_z, 10).item() == pytest.approx(2 * math.log(2), rel=1e-12)


def test_partition_makes_probabilities_on_average():
    scores = 5 * torch.randn(6, 30, dtype=torch.float64)
    log_z = log_partition(scores, 1000)
    assert (scores - log_z).exp().mean().item() == pytest.approx(1 / 1000, rel=1e-12)
    assert log_partition(1e4 + scores, 1000).isfinite()
    assert not log_partition(scores.requires_grad_(), 1000).requires_grad


@pytest.mark.parametrize("score", [-1e4, 1e4])
def test_extreme_scores_stay_finite(score):
    scores = torch.tensor([[score, -score]], requires_grad=True)
    loss = noise_contrast(scores, torch.zeros(()), 2)
    loss.backward()
    assert loss.item() == pytest.approx(2e4 if score < 0 else 0, abs=2)
    assert scores.grad.isfinite().all()


def test_dead_anchors_and_an_empty_memory_stay_finite():
    anchors, memory, drawn = case(3, dtype=torch.float32)
    for a, m in ((anchors * 0, memory), (anchors, memory * 0)):
        loss, gradient = loss_of(memory_scores, noise_contrast, a, m, drawn)
        assert loss.isfinite()
        assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision(dtype, autocast):
    anchors, memory, drawn = case(4, dtype=dtype)
    leaf, log_z = anchors.clone().requires_grad_(), torch.tensor(3.0)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        scores = memory_scores(leaf, memory, drawn)
        assert log_partition(scores, 9).dtype == torch.float32
        loss = noise_contrast(scores, log_z, 9)
    loss.backward()
    expected, wanted = loss_of(
        memory_scores, noise_contrast, anchors.double(), memory.double(), drawn, log_z=log_z.double()
    )
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(leaf.grad.double(), wanted, rtol=4 * torch.finfo(dtype).eps, atol=1e-4)


def test_gradient_goes_to_the_anchors_only():
    anchors, memory, drawn = case(5)
    anchors.requires_grad_()
    memory.requires_grad_()
    log_z = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    noise_contrast(memory_scores(anchors, memory, drawn), log_z, 9).backward()
    assert anchors.grad.any()
    assert memory.grad is log_z.grad is None

    def of(x):
        return noise_contrast(memory_scores(x, memory, drawn, tau=0.3), log_z, 9)

    assert torch.autograd.gradcheck(of, (anchors,))


def test_wrong_input():
    anchors, memory, drawn = case(6)
    with pytest.raises(ValueError, match=r"share d.*\[4, 5\] and \[9, 4\]"):
        memory_scores(anchors, memory[:, :4], drawn)
    with pytest.raises(ValueError, match="B = 4"):
        memory_scores(anchors, memory, drawn[:3])
    with pytest.raises(ValueError, match=r"tau.*0"):
        memory_scores(anchors, memory, drawn, tau=0.0)
    with pytest.raises(ValueError, match="K > 0"):
        noise_contrast(torch.ones(4, 1), torch.zeros(()), 9)


# --- drawing ------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    st.lists(st.integers(0, 5), min_size=2, max_size=40).filter(lambda x: len(set(x)) > 1), st.integers(0, 99)
)
def test_never_of_the_own_class_and_each_other_image_can_come(classes, seed):
    torch.manual_seed(seed)
    labels = torch.tensor(classes)
    order = rows_by_class(labels, 7)  # class 6 and maybe others have no image at all
    drawn = draw_others(labels, *order, torch.randint(2**62, (len(classes), 40 * len(classes))))
    assert drawn.shape == (len(classes), 40 * len(classes))
    for label, rows in zip(classes, drawn.tolist()):
        assert set(rows) == {row for row, other in enumerate(classes) if other != label}


def test_all_others_equally_often():
    """Chi-squared of 200,000 draws; the classes are of very different sizes."""
    torch.manual_seed(0)
    labels = torch.tensor([3] * 1 + [0] * 50 + [2] * 7 + [3] * 2)
    drawn = draw_others(
        torch.tensor([0, 2, 3]), *rows_by_class(labels, 4), torch.randint(2**62, (3, 200_000))
    )
    for label, rows in zip((0, 2, 3), drawn):
        counts = torch.bincount(rows, minlength=60)[labels != label].double()
        expected = 200_000 / len(counts)
        statistic = ((counts - expected) ** 2 / expected).sum().item()
        freedom = len(counts) - 1
        assert statistic < freedom + 4 * math.sqrt(2 * freedom)


def test_rows_by_class():
    order, first, sizes = rows_by_class(torch.tensor([2, 0, 2, 1, 0, 2]), 4)
    assert order.tolist() == [1, 4, 3, 0, 2, 5]
    assert first.tolist() == [0, 2, 3, 6]
    assert sizes.tolist() == [2, 1, 3, 0]
