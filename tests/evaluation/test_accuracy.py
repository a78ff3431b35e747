"""Top-k and per-class accuracy against counting by hand and scikit-learn."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import recall_score, top_k_accuracy_score

from refilled.evaluation import per_class, top_k


def random_logits(seed, images=60, classes=7):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(images, classes, generator=generator),
        torch.randint(0, classes, (images,), generator=generator),
    )


@pytest.mark.parametrize("k", [1, 2, 5, 7])
@pytest.mark.parametrize("seed", range(3))
def test_top_k_equals_scikit_learn(seed, k):
    logits, labels = random_logits(seed)
    expected = top_k_accuracy_score(labels, logits, k=k, labels=range(7)) if k < 7 else 1.0
    assert top_k(logits, labels, k) == pytest.approx(expected, abs=1e-12)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(1, 9), st.integers(1, 12))
def test_top_k_equals_counting(seed, images, classes, k):
    logits, labels = random_logits(seed, images, classes)
    right = 0
    for row, label in zip(logits.tolist(), labels.tolist()):
        better = sum(value > row[label] for value in row)
        right += better < k
    assert top_k(logits, labels, k) == pytest.approx(right / images, abs=1e-12)


def test_top_k_by_hand():
    logits = torch.tensor([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0], [1.0, 3.0, 2.0], [2.0, 1.0, 3.0]])
    labels = torch.tensor([0, 1, 0, 2])
    assert [top_k(logits, labels, k) for k in (1, 2, 3, 5)] == [0.5, 0.75, 1.0, 1.0]
    assert top_k(logits, labels) == 0.5


def test_ties_fill_no_more_than_k_places():
    """Equal logits for all classes: exactly k of C labels are counted right, not all of them."""
    logits, labels = torch.zeros(6, 6), torch.arange(6)
    for k in range(1, 7):
        assert top_k(logits, labels, k) == pytest.approx(k / 6)


def test_top_1_agrees_with_argmax_in_half_precision():
    logits, labels = random_logits(5)
    half = logits.to(torch.bfloat16)
    assert top_k(half, half.argmax(1)) == 1.0
    assert isinstance(top_k(half, labels), float)


def test_share_is_exact_to_double_precision():
    """As float32 it would not be the ratio of two counts any more."""
    labels = torch.zeros(1001, dtype=torch.int64)
    labels[7] = 1
    assert top_k(torch.tensor([[1.0, 0.0]]).expand(1001, 2), labels) == 1000 / 1001


def test_no_images():
    assert math.isnan(top_k(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)))
    none = torch.zeros(0, dtype=torch.int64)
    assert per_class(none, none, 2) == [None, None]


@pytest.mark.parametrize("seed", range(3))
def test_per_class_is_recall(seed):
    logits, labels = random_logits(seed, images=200)
    predicted = logits.argmax(1)
    expected = recall_score(labels, predicted, labels=range(7), average=None)
    assert per_class(predicted, labels, 7) == pytest.approx(expected.tolist())


def test_per_class_by_hand():
    """A class without images is None even where it is predicted; one that is never predicted is 0."""
    found = per_class(torch.tensor([0, 1, 1, 3, 1]), torch.tensor([0, 0, 1, 1, 2]), 5)
    assert found == [0.5, 0.5, 0.0, None, None]


def test_per_class_averages_to_top_1_where_classes_are_of_one_size():
    logits, _ = random_logits(9, images=70)
    labels = torch.arange(7).repeat(10)
    mean = sum(per_class(logits.argmax(1), labels, 7)) / 7
    assert mean == pytest.approx(top_k(logits, labels), abs=1e-12)
