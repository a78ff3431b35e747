"""A linear classifier on embeddings that stay as they are."""

import warnings

import torch
from torch import Tensor

_ROUNDS = 300


def logistic_regression(known: Tensor, labels: Tensor, asked: Tensor, penalty: float = 1.0) -> Tensor:
    """Classes predicted by a logistic regression on standardised embeddings (scikit-learn's).

    Args:
        known: embeddings [N, d] to learn from.
        labels: int64 [N].
        asked: embeddings [M, d].
        penalty: scikit-learn's C, the inverse strength of the l2 penalty.

    Returns:
        Predicted labels int64 [M], on the device of ``asked``.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    mean, std = known.float().mean(dim=0), known.float().std(dim=0).clamp(min=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = LogisticRegression(C=penalty, max_iter=_ROUNDS)
        model.fit(((known.float() - mean) / std).cpu().numpy(), labels.cpu().numpy())
    predicted = model.predict(((asked.float() - mean) / std).cpu().numpy())
    return torch.as_tensor(predicted, dtype=torch.int64).to(asked.device)
