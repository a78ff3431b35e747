"""Relations between the instances of a batch: they need no classes, and no common dimension.

Park, Kim, Lu, Cho: Relational Knowledge Distillation, 2019 (distances and angles); Tung, Mori:
Similarity-Preserving Knowledge Distillation, 2019. Embeddings are taken as they are, not l2-normalised:
so do the experiments of the first paper in metric learning.
"""

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from refilled.objectives.precision import as_given, double_precision, full_precision

_BLOCK_ELEMENTS = 2**20  # anchors are taken in blocks of about this many angles, 8 MB


def rkd_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """Park et al., distance-wise loss: Huber loss between distances, each in units of its batch's mean.

    The mean is taken over the distances that are not 0, the loss over all B² ordered pairs, an instance
    with itself included, as in the authors' code. Equal embeddings have distance 0 and no gradient.

    Args:
        student: embeddings [B, d]; the gradient goes here, through the mean as well.
        teacher: embeddings [B, d'], any dimension; no gradient.

    Returns:
        Scalar; float64 for float64 embeddings, else float32.
    """
    _check_batch(student, teacher)
    with torch.autocast(student.device.type, enabled=False):
        loss = F.smooth_l1_loss(
            _in_units_of_mean(_distances(*_dots(student))),
            _in_units_of_mean(_distances(*_dots(teacher.detach()))),
            reduction="sum",
        )
        return as_given(loss / max(len(student) ** 2, 1), student)


def rkd_angle(student: Tensor, teacher: Tensor, *, block: int | None = None) -> Tensor:
    """Park et al., angle-wise loss: Huber loss between the cosines of the angles in all triplets.

    The cosine at anchor j between instances i and k is

        (G_ik - G_ij - G_jk + G_jj) / (D_ij D_jk)

    with the Gram matrix G and the distances D: no difference of embeddings is ever stored. It is 0, without
    gradient, where an instance is equal to the anchor; the loss is the mean over all B³ triplets, those
    included, as in the authors' code. Anchors are taken in blocks, whose matrices are made again for the
    backward pass: B³ time, but memory for a block only.

    Args:
        student: embeddings [B, d]; the gradient goes here.
        teacher: embeddings [B, d'], any dimension; no gradient.
        block: anchors at once; None: as many as fit into a few megabytes.

    Returns:
        Scalar; float64 for float64 embeddings, else float32.
    """
    _check_batch(student, teacher)
    if block is not None and block < 1:
        raise ValueError(f"block must be at least 1, or None, not {block}")
    size = len(student)
    block = block or max(1, _BLOCK_ELEMENTS // max(size**2, 1))
    with torch.autocast(student.device.type, enabled=False):
        of_student, of_teacher = _dots(student), _dots(teacher.detach())
        inverse_student, inverse_teacher = _inverse_distances(*of_student), _inverse_distances(*of_teacher)
        total = of_student[0].sum() * 0.0
        for start in range(0, size, block):
            anchors = slice(start, start + block)
            arguments = (*of_student, inverse_student, *of_teacher, inverse_teacher, anchors)
            if block >= size:
                total = total + _angle_loss(*arguments)
            else:
                total = total + checkpoint(
                    _angle_loss, *arguments, use_reentrant=False, preserve_rng_state=False
                )
        return as_given(total / max(size**3, 1), student)


def similarity_preserving(student: Tensor, teacher: Tensor) -> Tensor:
    """Tung and Mori, Equations 2 to 4: squared distance of Gram matrices with rows of length 1, over B².

    Args:
        student: embeddings or flattened feature maps [B, d]; the gradient goes here.
        teacher: the same of the teacher [B, d'], any dimension; no gradient.

    Returns:
        Scalar.
    """
    _check_batch(student, teacher)
    with torch.autocast(student.device.type, enabled=False):
        student, teacher = full_precision(student), full_precision(teacher.detach())
        similar_student = F.normalize(student @ student.T, dim=1)
        similar_teacher = F.normalize(teacher @ teacher.T, dim=1).to(student.dtype)
        return (similar_student - similar_teacher).square().sum() / max(len(student) ** 2, 1)


def _check_batch(student: Tensor, teacher: Tensor) -> None:
    if student.ndim != 2 or teacher.ndim != 2 or len(student) != len(teacher):
        raise ValueError(
            f"student [B, d] and teacher [B, d'] must share B, not {list(student.shape)} "
            f"and {list(teacher.shape)}"
        )


def _dots(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of the rows less their mean, which changes neither distances nor angles: dot products [B, B], and those
    with themselves [B], which are not a view of the former: compiled code may write over what it viewed."""
    x = double_precision(x)
    x = x - x.detach().mean(dim=0) if len(x) else x
    return x @ x.T, x.square().sum(dim=1)


def _squared_distances(gram: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Squared distances [B, B], 1 between equal embeddings, and which pairs are apart."""
    both = lengths[:, None] + lengths
    squared = both - 2.0 * gram
    apart = ~(squared <= 64 * torch.finfo(gram.dtype).eps * both.detach())  # less is rounding; NaN is not
    apart = apart & ~torch.eye(len(gram), dtype=torch.bool, device=gram.device)
    return torch.where(apart, squared, 1.0), apart


def _distances(gram: Tensor, lengths: Tensor) -> Tensor:
    squared, apart = _squared_distances(gram, lengths)
    return torch.where(apart, squared.sqrt(), 0.0)


def _inverse_distances(gram: Tensor, lengths: Tensor) -> Tensor:
    """1 / distance [B, B]; 0 between equal embeddings."""
    squared, apart = _squared_distances(gram, lengths)
    return torch.where(apart, squared.rsqrt(), 0.0)


def _in_units_of_mean(distances: Tensor) -> Tensor:
    apart = (distances > 0).sum()
    mean = distances.sum() / apart.clamp(min=1)
    return distances / torch.where(apart > 0, mean, 1.0)


def _angle_loss(
    gram: Tensor,
    lengths: Tensor,
    inverse: Tensor,
    gram_teacher: Tensor,
    lengths_teacher: Tensor,
    inverse_teacher: Tensor,
    anchors: slice,
) -> Tensor:
    """Sum of the Huber losses of the triplets with these anchors."""
    wanted = _cosines(gram_teacher, lengths_teacher, inverse_teacher, anchors)
    return F.smooth_l1_loss(_cosines(gram, lengths, inverse, anchors), wanted, reduction="sum")


def _cosines(gram: Tensor, lengths: Tensor, inverse: Tensor, anchors: slice) -> Tensor:
    """Cosines [b, B, B] of the angles at each anchor."""
    rows, scale, own = gram[anchors], inverse[anchors], lengths[anchors]
    dots = gram - rows[:, :, None] - rows[:, None, :] + own[:, None, None]
    return dots * scale[:, :, None] * scale[:, None, :]
