"""Comparison matching: the student compares instances as the teacher does.

Ye, Lu, Zhan: Generalized Knowledge Distillation via Relationship Matching, Section 4.2 (tuples,
their softmax, the KL divergence over all tuples).

**Why it does not cost B³.** For an anchor, sort all other instances by the student's distance, the
farthest first. The impostors of a pair (anchor, positive) are then simply the negatives that stand
before the positive: one running sum along the row serves every positive at once. With
a = exp(-D_T/τ_T), s = exp(-D/τ_S) and g = D/τ_S - D_T/τ_T, the divergence of a tuple is

    KL = (a_p g_p + Σ a_n g_n) / Z_T + log Z_S - log Z_T,   Z_T = a_p + Σ a_n,   Z_S = s_p + Σ s_n,

so three running sums are enough: exact, O(B² log B) time, O(B²) memory, static shapes. Sums only ever
add, never subtract, and run in float64, so small temperatures lose nothing to cancellation.
"""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from refilled.objectives.checks import check_rows, check_temperature
from refilled.objectives.intervals import interval_sums, running_sums
from refilled.objectives.precision import as_given, double_precision
from refilled.objectives.unit import unit_rows

_ZERO_SQUARED = 1e-14  # squared distances below this are rounding: the two embeddings are the same
_TIE = 2.0**-40  # distances closer than this are equal
SMALLEST_TAU = 0.003  # exp(-2 / tau) must stay a positive float64
_BLOCK_ELEMENTS = 2**21  # anchors are taken in blocks of about this many distances, 16 MB
# With more distances than this, a block's matrices are made again for the backward pass.
_KEPT_ELEMENTS = 2**25


def comparison_matching(
    student: Tensor,
    teacher: Tensor,
    labels: Tensor,
    *,
    tau_student: float = 1.0,
    tau_teacher: float = 2.0,
    margin: float | None = None,
    max_impostors: int | None = None,
) -> Tensor:
    """Mean over all tuples of KL(teacher's comparison || student's comparison).

    A tuple is an ordered pair (anchor, positive) of one class with its impostors: the instances of
    other classes that are farther from the anchor than the positive is, by the student's distance
    between l2-normalised embeddings. A pair without impostors is no tuple; without any tuple the loss
    is 0 and so is the gradient. Distances that differ by rounding only count as equal.

    Args:
        student: embeddings [B, d] of the student; the gradient goes here.
        teacher: embeddings [B, d'] of the teacher, any dimension; no gradient.
        labels: int64 [B].
        tau_student: temperature of the student's comparison.
        tau_teacher: temperature of the teacher's comparison.
        margin: impostors are nearer than the positive's distance plus this; None: no bound.
        max_impostors: only this many impostors, those nearest beyond the positive (1: triplets);
            among equally far ones those of lower index. None: all.

    Returns:
        Scalar; float64 for float64 embeddings, else float32. NaN where an embedding is not finite.
    """
    check_rows(labels, student=student, teacher=teacher)
    check_temperature(SMALLEST_TAU, tau_student=tau_student, tau_teacher=tau_teacher)
    if max_impostors is not None and max_impostors < 1:
        raise ValueError(f"max_impostors must be at least 1, or None for all, not {max_impostors}")
    if margin is not None and not margin > 0:
        raise ValueError(f"margin must be greater than 0, or None for no bound, not {margin}")

    with torch.autocast(student.device.type, enabled=False):
        unit_student = _centred(unit_rows(double_precision(student)))
        unit_teacher = _centred(unit_rows(double_precision(teacher.detach())))
        size = len(labels)
        block = max(1, min(size, _BLOCK_ELEMENTS // max(size, 1)))
        settings = (tau_student, tau_teacher, margin, max_impostors)
        # No tuple has an embedding that is NaN: nothing is farther away. The loss has to be NaN all the same.
        total = (unit_student.sum() + unit_teacher.sum()) * 0.0
        tuples = unit_student.new_zeros(())
        for start in range(0, size, block):
            rows = torch.arange(start, min(start + block, size), device=labels.device)
            arguments = (unit_student, unit_teacher, labels, rows, *settings)
            if size * size <= _KEPT_ELEMENTS:
                part, count = _tuples_of(*arguments)
            else:
                part, count = checkpoint(
                    _tuples_of, *arguments, use_reentrant=False, preserve_rng_state=False
                )
            total, tuples = total + part, tuples + count
        loss = total / tuples.clamp(min=1)
        return as_given(loss, student)


def _centred(x: Tensor) -> Tensor:
    """Rows less their mean: distances stay as they are, and rounding errors shrink with the spread."""
    return x - x.detach().mean(dim=0) if len(x) else x


def _distances(rows: Tensor, all_rows: Tensor) -> Tensor:
    """Euclidean distances [b, B]; exactly 0, with gradient 0, between equal embeddings."""
    squared = (rows * rows).sum(1, keepdim=True) + (all_rows * all_rows).sum(1) - 2.0 * (rows @ all_rows.T)
    apart = squared > _ZERO_SQUARED
    return torch.where(apart, torch.where(apart, squared, 1.0).sqrt(), 0.0)


def _tuples_of(
    student: Tensor,
    teacher: Tensor,
    labels: Tensor,
    anchors: Tensor,
    tau_student: float,
    tau_teacher: float,
    margin: float | None,
    max_impostors: int | None,
) -> tuple[Tensor, Tensor]:
    """Sum of the divergences and number of the tuples whose anchor is in ``anchors`` [b]."""
    distance = _distances(student[anchors], student)  # [b, B]
    with torch.no_grad():
        same_class = labels[anchors, None] == labels[None, :]
        # Farthest first. Twice the distance in units of a tie, plus one for the anchor's own class: in
        # ascending order a positive comes after the negatives that are just as far, so after the flip
        # it stands before them, and they are no impostors of it.
        rank = (distance / _TIE).round().to(torch.int64) * 2 + same_class
        order = rank.sort(dim=1, stable=True).indices.flip(1)
        positive = same_class.gather(1, order) & (order != anchors[:, None])
        negative = ~same_class.gather(1, order)
        d_teacher = _distances(teacher[anchors], teacher).gather(1, order) / tau_teacher
        a = torch.exp(-d_teacher)
        a_negative = a * negative
    d_student = distance.gather(1, order) / tau_student
    s = torch.exp(-d_student)
    gap = d_student - d_teacher

    summands = (a_negative, a_negative * gap, s * negative)
    if margin is None and max_impostors is None:
        sum_a, sum_a_gap, sum_s = (running_sums(summand) for summand in summands)
    else:
        first = _window_start(d_student.detach() * tau_student, negative, margin, max_impostors)
        sum_a, sum_a_gap, sum_s = interval_sums(summands, first)

    is_tuple = positive & (sum_a > 0)
    z_teacher, z_student = a + sum_a, s + sum_s
    divergence = (a * gap + sum_a_gap) / z_teacher + z_student.log() - z_teacher.log()
    return torch.where(is_tuple, divergence, 0.0).sum(), is_tuple.sum()


def _window_start(
    distance: Tensor, negative: Tensor, margin: float | None, max_impostors: int | None
) -> Tensor:
    """For each place of the sorted rows [b, B], the first place that its impostors may stand at."""
    first = torch.zeros(distance.shape, dtype=torch.int64, device=distance.device)
    if margin is not None:
        nearer = torch.searchsorted(-distance, -(distance + margin - _TIE), right=True)
        first = torch.maximum(first, nearer)
    if max_impostors is not None:
        before = negative.cumsum(dim=1)
        first = torch.maximum(first, torch.searchsorted(before, before - max_impostors, right=True))
    return first
