"""A linear classifier on embeddings that stay as they are."""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

_ROUNDS = 300


@dataclass(frozen=True)
class Probe:
    """A linear classifier: logits are ``embeddings @ weight.T + bias``."""

    weight: Tensor
    """float32 [C, d]"""
    bias: Tensor
    """float32 [C]"""

    def classify(self, embeddings: Tensor) -> Tensor:
        """Logits [M, C] of embeddings [M, d]."""
        return embeddings.float() @ self.weight.T + self.bias


def fit_probe(known: Tensor, labels: Tensor, num_classes: int, penalty: float = 1.0) -> Probe:
    """Logistic regression on standardised embeddings (scikit-learn's), as a classifier of plain ones.

    Args:
        known: embeddings [N, d] to learn from.
        labels: int64 [N]; a class that does not occur is never predicted.
        num_classes: C.
        penalty: scikit-learn's C, the inverse strength of the l2 penalty.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    mean, std = known.float().mean(dim=0), known.float().std(dim=0).clamp(min=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = LogisticRegression(C=penalty, max_iter=_ROUNDS)
        model.fit(((known.float() - mean) / std).cpu().numpy(), labels.cpu().numpy())
    rows = torch.as_tensor(model.coef_, dtype=torch.float32).to(known.device)
    offsets = torch.as_tensor(model.intercept_, dtype=torch.float32).to(known.device)
    if len(rows) == 1:  # of two classes scikit-learn keeps the difference only
        rows, offsets = torch.cat([-rows, rows]) / 2, torch.cat([-offsets, offsets]) / 2
    weight = rows.new_zeros(num_classes, known.shape[1])
    bias = rows.new_full((num_classes,), -1e9)
    seen = torch.as_tensor(model.classes_, dtype=torch.int64).to(known.device)
    weight[seen] = rows / std
    bias[seen] = offsets - weight[seen] @ mean
    return Probe(weight, bias)


def logistic_regression(known: Tensor, labels: Tensor, asked: Tensor, num_classes: int) -> Tensor:
    """Labels int64 [M] that a logistic regression on ``known`` [N, d] predicts for ``asked`` [M, d]."""
    return fit_probe(known, labels, num_classes).classify(asked).argmax(dim=1)
