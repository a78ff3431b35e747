"""Class centres, scores and the literal posterior against their loops."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from refilled.objectives import class_centres, class_posterior, class_scores

from . import reference

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def features(seed: int, size: int = 12, dim: int = 5, classes: int = 4, dtype=torch.float64):
    """Embeddings [B, d] that are never negative (as after a ReLU) and labels [B]."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.rand(size, dim, generator=generator, dtype=torch.float64).to(dtype)
    return embeddings, torch.randint(0, classes, (size,), generator=generator)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 2, 30])
def test_centres_scores_and_posterior_equal_reference(size, dtype):
    embeddings, labels = features(size, size=size, dtype=dtype)
    tolerance = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    centres = class_centres(embeddings, labels, 4)
    scores = class_scores(embeddings, centres)
    posterior = class_posterior(scores)
    expected_centres = reference.class_centres(embeddings, labels, 4)
    expected_scores = reference.class_scores(embeddings, expected_centres)
    torch.testing.assert_close(centres, expected_centres, **tolerance)
    torch.testing.assert_close(scores, expected_scores, **tolerance)
    torch.testing.assert_close(posterior, reference.class_posterior(expected_scores), **tolerance)
    torch.testing.assert_close(posterior.sum(dim=1), torch.ones(size, dtype=dtype), **tolerance)


def test_centres_by_hand():
    embeddings = torch.tensor([[1.0, 2.0], [3.0, 6.0], [0.0, 5.0]])
    centres = class_centres(embeddings, torch.tensor([2, 2, 0]), 4)
    assert centres.tolist() == [[0.0, 5.0], [0.0, 0.0], [2.0, 4.0], [0.0, 0.0]]
    scores = class_scores(torch.tensor([[10.0, 3.0]]), centres)
    torch.testing.assert_close(scores, torch.tensor([[3.0, 0.0, 32 / 20**0.5, 0.0]]))
    torch.testing.assert_close(
        class_posterior(torch.tensor([[1.0, 3.0, 0.0]])), torch.tensor([[0.25, 0.75, 0.0]])
    )


def test_class_without_images_has_centre_and_scores_zero():
    embeddings, labels = features(1)
    centres = class_centres(embeddings, labels, 7)
    scores = class_scores(embeddings, centres)
    assert not centres[4:].any()
    assert not scores[:, 4:].any()
    torch.testing.assert_close(centres[:4], class_centres(embeddings, labels, 4))
    torch.testing.assert_close(class_posterior(scores)[:, :4], class_posterior(scores[:, :4]))


def test_no_images_at_all():
    centres = class_centres(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), 2)
    assert torch.equal(centres, torch.zeros(2, 3))
    assert class_scores(torch.zeros(0, 3), centres).shape == (0, 2)
    assert class_posterior(torch.zeros(0, 2)).shape == (0, 2)


def test_scores_that_sum_to_zero_stay_finite():
    scores = torch.tensor([[0.0, 0.0, 0.0], [1.0, -1.0, 0.0], [1.0, 1.0, 2.0]], requires_grad=True)
    posterior = class_posterior(scores)
    assert posterior.isfinite().all()
    torch.testing.assert_close(posterior[2], torch.tensor([0.25, 0.25, 0.5]))
    posterior.sum().backward()
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_is_computed_in_float32(dtype, autocast):
    """10,000 images of one class: a sum in half precision would be far off, or infinite."""
    embeddings = (8.0 + torch.rand(10_000, 3, generator=torch.Generator().manual_seed(0))).to(dtype)
    labels = torch.zeros(10_000, dtype=torch.int64)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        centres = class_centres(embeddings, labels, 2)
        scores = class_scores(embeddings[:4], centres.to(dtype))
        posterior = class_posterior(scores.to(dtype))
    assert centres.dtype == scores.dtype == posterior.dtype == torch.float32
    torch.testing.assert_close(centres[0], embeddings.double().mean(dim=0).float(), rtol=1e-5, atol=0)
    exact = reference.class_scores(embeddings[:4].double(), centres.to(dtype).double())
    torch.testing.assert_close(scores, exact.float(), rtol=1e-5, atol=1e-5)
    rounded = scores.to(dtype).double()
    torch.testing.assert_close(posterior, (rounded / rounded.sum(1, keepdim=True)).float(), rtol=1e-5, atol=0)


def test_autocast_changes_nothing():
    embeddings, labels = features(2, dtype=torch.float32)
    centres = class_centres(embeddings, labels, 4)
    scores = class_scores(embeddings, centres)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(class_centres(embeddings, labels, 4), centres)
        assert torch.equal(class_scores(embeddings, centres), scores)
        assert torch.equal(class_posterior(scores), class_posterior(scores.clone()))


def test_mixed_precision_of_embeddings_and_centres():
    embeddings, labels = features(3)
    centres = class_centres(embeddings, labels, 4)
    expected = reference.class_scores(embeddings, centres)
    for left, right in (
        (torch.float64, torch.float32),
        (torch.float32, torch.float64),
        (torch.float32, torch.bfloat16),
    ):
        scores = class_scores(embeddings.to(left), centres.to(right))
        assert scores.dtype == left
        torch.testing.assert_close(
            scores.double(), expected, rtol=0, atol=1e-2 if right == torch.bfloat16 else 1e-6
        )


def test_length_of_a_centre_does_not_matter():
    embeddings, labels = features(4)
    centres = class_centres(embeddings, labels, 4)
    factors = torch.tensor([[1e-3], [1.0], [7.0], [1e5]], dtype=torch.float64)
    torch.testing.assert_close(class_scores(embeddings, centres * factors), class_scores(embeddings, centres))


def test_gradcheck():
    embeddings, labels = features(5, size=6, dim=3)
    embeddings.requires_grad_()
    weights = torch.randn(6, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)

    def whole_way(x):
        return (class_posterior(class_scores(x, class_centres(x, labels, 4))) * weights).sum()

    assert torch.autograd.gradcheck(whole_way, (embeddings,))


def test_gradient_of_an_empty_class_is_finite():
    embeddings, labels = features(6)
    embeddings.requires_grad_()
    class_scores(embeddings, class_centres(embeddings, labels, 9)).sum().backward()
    assert embeddings.grad.isfinite().all()


@settings(deadline=None, max_examples=50, derandomize=True)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.integers(0, 1000))
def test_any_labels(labels, seed):
    embeddings, _ = features(seed, size=len(labels))
    target = torch.tensor(labels)
    centres = class_centres(embeddings, target, 6)
    torch.testing.assert_close(centres, reference.class_centres(embeddings, target, 6))
    counts = torch.bincount(target, minlength=6)[:, None]
    torch.testing.assert_close((centres * counts).sum(dim=0), embeddings.sum(dim=0))


@pytest.mark.parametrize(
    ("embeddings", "labels", "message"),
    [
        ((4, 2), (4, 1), r"labels.*\[4, 1\]"),
        ((5, 2), (4,), r"embeddings.*4.*\[5, 2\]"),
        ((4,), (4,), r"embeddings.*\[4\]"),
        ((4, 2, 2), (4,), r"embeddings.*\[4, 2, 2\]"),
    ],
)
def test_wrong_shapes_for_centres(embeddings, labels, message):
    with pytest.raises(ValueError, match=message):
        class_centres(torch.ones(embeddings), torch.zeros(labels, dtype=torch.int64), 3)


@pytest.mark.parametrize(
    ("embeddings", "centres"), [((4, 2), (3, 5)), ((4,), (3, 4)), ((4, 2), (2,)), ((4, 2, 2), (3, 2))]
)
def test_wrong_shapes_for_scores(embeddings, centres):
    with pytest.raises(ValueError, match="must share d") as error:
        class_scores(torch.ones(embeddings), torch.ones(centres))
    assert str(list(embeddings)) in str(error.value)
    assert str(list(centres)) in str(error.value)


def test_labels_beyond_the_classes_are_an_error():
    with pytest.raises((IndexError, RuntimeError)):
        class_centres(torch.ones(2, 3), torch.tensor([0, 5]), 2)
