"""The baselines' formulas as plain loops: slow and obvious. Nothing is shared with the package."""

import torch
from torch import Tensor

from . import reference

SAME = 1e-6  # two embeddings nearer than this are one point
FLAT = 1e-12  # numbers whose standard deviation is this much smaller than they are all equal


def length(x: Tensor) -> Tensor:
    """Length of a vector; 0 without gradient for one that is nothing but rounding."""
    squared = (x * x).sum()
    return squared.sqrt() if squared.item() > SAME**2 else torch.zeros((), dtype=x.dtype)


def huber(a: Tensor, b: Tensor) -> Tensor:
    gap = (a - b).abs()
    return gap**2 / 2 if gap.item() <= 1 else gap - 0.5


def scaled_distances(embeddings: Tensor) -> list[Tensor]:
    """All B² distances over the mean of those that are not 0."""
    distances = [length(a - b) for a in embeddings for b in embeddings]
    apart = [distance for distance in distances if distance.item() > 0]
    return [distance / (sum(apart) / len(apart)) for distance in distances] if apart else distances


def rkd_distance(student: Tensor, teacher: Tensor) -> Tensor:
    pairs = zip(scaled_distances(student), scaled_distances(teacher.detach()))
    return sum(huber(s, t) for s, t in pairs) / len(student) ** 2 + student.sum() * 0


def cosine_at(anchor: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Cosine of the angle at an anchor; 0 where there is none."""
    to_a, to_b = length(a - anchor), length(b - anchor)
    if 0.0 in (to_a.item(), to_b.item()):
        return torch.zeros((), dtype=anchor.dtype)
    return ((a - anchor) * (b - anchor)).sum() / (to_a * to_b)


def rkd_angle(student: Tensor, teacher: Tensor) -> Tensor:
    total, size = student.sum() * 0, len(student)
    for j in range(size):
        for i in range(size):
            for k in range(size):
                wanted = cosine_at(teacher[j], teacher[i], teacher[k]).detach()
                total = total + huber(cosine_at(student[j], student[i], student[k]), wanted)
    return total / size**3


def similarities(x: Tensor) -> list[Tensor]:
    """Rows of the Gram matrix, each of length 1."""
    return [reference.unit_vector(torch.stack([(a * b).sum() for b in x])) for a in x]


def similarity_preserving(student: Tensor, teacher: Tensor) -> Tensor:
    rows = zip(similarities(student), similarities(teacher.detach()))
    return sum(((s - t) ** 2).sum() for s, t in rows) / len(student) ** 2


def dkd(
    student: Tensor,
    teacher: Tensor,
    labels: Tensor,
    *,
    tau: float = 4.0,
    alpha: float = 1.0,
    beta: float = 8.0,
) -> Tensor:
    total = student.sum() * 0
    for s, t, label in zip(student / tau, teacher.detach() / tau, labels.tolist()):
        others = [c for c in range(len(s)) if c != label]
        if not others:
            continue
        pair_s, pair_t = (torch.stack([z[label], torch.logsumexp(z[others], 0)]) for z in (s, t))
        target = reference.kl(reference.log_softmax(pair_t), reference.log_softmax(pair_s))
        rest = reference.kl(reference.log_softmax(t[others]), reference.log_softmax(s[others]))
        total = total + alpha * target + beta * rest
    return tau**2 * total / len(student)


def standard(x: Tensor) -> Tensor | None:
    """A vector with mean 0 and variance 1; None for one that is constant."""
    centred = x - x.mean()
    deviation = (centred**2).mean().sqrt() if (centred**2).sum().item() > 0 else torch.zeros(())
    return centred / deviation if deviation.item() > FLAT * x.abs().max().item() else None


def gap(a: Tensor, b: Tensor) -> Tensor:
    """1 - Pearson correlation; 0 where there is none."""
    a, b = standard(a), standard(b)
    return torch.zeros((), dtype=torch.float64) if a is None or b is None else 1 - (a * b).mean()


def dist(
    student: Tensor, teacher: Tensor, *, tau: float = 1.0, beta: float = 2.0, gamma: float = 2.0
) -> Tensor:
    s, t = (torch.stack([reference.log_softmax(z / tau).exp() for z in x]) for x in (student, teacher))
    t = t.detach()
    inter = sum(gap(a, b) for a, b in zip(s, t)) / len(s)
    intra = sum(gap(a, b) for a, b in zip(s.T, t.T)) / s.shape[1]
    return tau**2 * (beta * inter + gamma * intra) + student.sum() * 0


def standardised_kd(student: Tensor, teacher: Tensor, *, tau: float = 2.0) -> Tensor:
    def scores(x: Tensor) -> Tensor:
        rows = [(row, standard(row)) for row in x]
        return torch.stack([torch.zeros_like(row) if z is None else z for row, z in rows])

    return reference.kd(scores(student), scores(teacher.detach()), tau=tau) + student.sum() * 0
