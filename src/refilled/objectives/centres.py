"""The class-centre classifier that stands in for the head a teacher does not have.

Ye, Lu, Zhan, Section 4.3: centres of the target classes in the teacher's embedding, and scores of an
instance against them. It works for any classes, whatever the teacher was trained on.
"""

import torch
from torch import Tensor

from refilled.objectives.checks import check_rows
from refilled.objectives.precision import full_precision


def class_centres(embeddings: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Mean embedding of each class; a class without instances has centre 0.

    Args:
        embeddings: [N, d].
        labels: int64 [N], from 0 to num_classes - 1.
        num_classes: number of classes C.

    Returns:
        Centres [C, d].
    """
    check_rows(labels, embeddings=embeddings)
    with torch.autocast(embeddings.device.type, enabled=False):
        embeddings = full_precision(embeddings)
        sums = embeddings.new_zeros(num_classes, embeddings.shape[1]).index_add(0, labels, embeddings)
        counts = embeddings.new_zeros(num_classes).index_add(0, labels, embeddings.new_ones(len(labels)))
        return sums / counts.clamp(min=1)[:, None]


def class_scores(embeddings: Tensor, centres: Tensor) -> Tensor:
    """Dot products with the l2-normalised centres: the numerator of the paper's posterior.

    Args:
        embeddings: [B, d].
        centres: [C, d].

    Returns:
        Scores [B, C]; 0 for a centre that is 0.
    """
    if embeddings.ndim != 2 or centres.ndim != 2 or embeddings.shape[1] != centres.shape[1]:
        raise ValueError(
            f"embeddings [B, d] and centres [C, d] must share d, not {list(embeddings.shape)} "
            f"and {list(centres.shape)}"
        )
    with torch.autocast(embeddings.device.type, enabled=False):
        embeddings, centres = full_precision(embeddings), full_precision(centres)
        return embeddings @ torch.nn.functional.normalize(centres, dim=1).to(embeddings.dtype).T


def class_posterior(scores: Tensor) -> Tensor:
    """The paper's literal posterior: scores divided by their sum over all C classes.

    It is a distribution for embeddings that are never negative (after a ReLU). With many classes it is
    close to uniform, which is why it is not our default.

    Args:
        scores: [B, C], of :func:`class_scores`.

    Returns:
        [B, C], rows that sum to 1.
    """
    total = full_precision(scores).sum(dim=1, keepdim=True)
    return full_precision(scores) / torch.where(total.abs() < 1e-12, torch.ones_like(total), total)
