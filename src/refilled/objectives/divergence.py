"""How far a distribution is from another, row by row: what every distillation of logits comes down to."""

from torch import Tensor


def divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(teacher || student) of each row, [B], for log-probabilities [B, C].

    A logarithm of 0 has to be finite (very negative): 0 times infinity would be no number.
    """
    return (teacher.exp() * (teacher - student)).sum(dim=1)
