"""Linear classifiers on frozen embeddings: logistic regression and support vector machine, exact, for many
tasks at once.

Both losses are smooth and, with their penalty, strongly convex, so that Nesterov's method with a constant
momentum (Nesterov, 2004, Section 2.2) is as good as any other, and all it needs is products of matrices.
Embeddings are l2-normalised, which bounds the curvature by the number of images; there is no intercept,
because classes are equally frequent.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from refilled.checks import check_number
from refilled.fewshot.classifiers import TaskClassifier

_PRECISION = 1e-6  # of the objective, relative to where it starts


def logistic_regression(penalty: float = 10.0) -> TaskClassifier:
    """Minimises ||W||² / 2 + penalty * (sum of cross-entropies); scikit-learn's C is the penalty."""
    check_number("penalty", penalty, above=0)

    def classify(support: Tensor, labels: Tensor, queries: Tensor) -> Tensor:
        images = F.normalize(support, dim=2)
        wanted = F.one_hot(labels).to(images.dtype)  # [n, ways]

        def gradient(weights: Tensor) -> Tensor:
            error = (images @ weights.mT).softmax(dim=2) - wanted
            return weights + penalty * error.mT @ images

        # The cross-entropy's second derivative in the logits is at most 1/2.
        weights = _minimise(gradient, _zeros(images, wanted), 1 + penalty * images.shape[1] / 2)
        return (F.normalize(queries, dim=2) @ weights.mT).argmax(dim=2)

    return classify


def support_vectors(penalty: float = 1.0) -> TaskClassifier:
    """A linear SVM for each class against the others, with squared hinge loss (scikit-learn's LinearSVC).

    Minimises ||w||² / 2 + penalty * sum of max(0, 1 - y w.x)² for each.
    """
    check_number("penalty", penalty, above=0)

    def classify(support: Tensor, labels: Tensor, queries: Tensor) -> Tensor:
        images = F.normalize(support, dim=2)
        wanted = 2 * F.one_hot(labels).to(images.dtype) - 1  # [n, ways], 1 or -1

        def gradient(weights: Tensor) -> Tensor:
            missing = (1 - wanted * (images @ weights.mT)).clamp(min=0)
            return weights - 2 * penalty * (wanted * missing).mT @ images

        weights = _minimise(gradient, _zeros(images, wanted), 1 + 2 * penalty * images.shape[1])
        return (F.normalize(queries, dim=2) @ weights.mT).argmax(dim=2)

    return classify


def _zeros(images: Tensor, wanted: Tensor) -> Tensor:
    return images.new_zeros(len(images), wanted.shape[1], images.shape[2])


@torch.no_grad()
def _minimise(gradient: Callable[[Tensor], Tensor], start: Tensor, curvature: float) -> Tensor:
    """The minimum of functions whose second derivatives lie between 1 and ``curvature``."""
    root = math.sqrt(curvature)
    momentum = (root - 1) / (root + 1)
    weights, ahead = start, start
    for _ in range(math.ceil(root * math.log((curvature + 1) / _PRECISION))):
        last, weights = weights, ahead - gradient(ahead) / curvature
        ahead = weights + momentum * (weights - last)
    return weights
