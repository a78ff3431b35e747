"""The formulas of the method as plain loops: slow, obvious, differentiable.

Written from the text of the method, one image, one class and one tuple at a time. Give them float64
for a reference that is good to about 1e-14. Nothing here is shared with the package.
"""

import math

import torch
from torch import Tensor

SAME_POINT = 1e-7  # two unit vectors nearer than this are one point: distance 0 and no gradient
SAME_DISTANCE = 1e-9  # two distances nearer than this are equal


def unit_vector(x: Tensor) -> Tensor:
    """A vector [d] divided by its length; the zero vector stays zero and passes no gradient."""
    length_squared = (x * x).sum()
    if length_squared.item() == 0.0:
        return torch.zeros_like(x)
    return x / length_squared.sqrt()


def euclidean(u: Tensor, v: Tensor) -> Tensor:
    """Length of the difference of two vectors [d]; the same point has distance 0 and no gradient."""
    squared = ((u - v) ** 2).sum()
    if squared.item() < SAME_POINT**2:
        return torch.zeros((), dtype=u.dtype)
    return squared.sqrt()


def distance_table(embeddings: Tensor) -> list[list[Tensor]]:
    """Distances between all l2-normalised rows of embeddings [B, d], as a B x B nested list."""
    units = [unit_vector(row) for row in embeddings]
    table = [[torch.zeros((), dtype=embeddings.dtype) for _ in units] for _ in units]
    for i in range(len(units)):
        for j in range(i):
            table[i][j] = table[j][i] = euclidean(units[i], units[j])
    return table


def impostors_of(
    anchor: int,
    positive: int,
    distance: list[list[float]],
    labels: list[int],
    margin: float | None,
    max_impostors: int | None,
) -> list[int]:
    """The impostors of one pair, nearest first; among equally far ones the lower index first."""
    to_positive = distance[anchor][positive]
    found: list[int] = []
    for n in range(len(labels)):
        if labels[n] == labels[anchor]:
            continue
        if not distance[anchor][n] > to_positive + SAME_DISTANCE:
            continue
        if margin is not None and not distance[anchor][n] < to_positive + margin - SAME_DISTANCE:
            continue
        found.append(n)
    # Insertion sort that leaves equal distances in the order of their indices.
    ordered: list[int] = []
    for n in found:
        place = len(ordered)
        while place > 0 and distance[anchor][ordered[place - 1]] > distance[anchor][n] + SAME_DISTANCE:
            place -= 1
        ordered.insert(place, n)
    return ordered if max_impostors is None else ordered[:max_impostors]


def comparison_tuples(
    student: Tensor, labels: Tensor, margin: float | None = None, max_impostors: int | None = None
) -> list[tuple[int, int, list[int]]]:
    """All (anchor, positive, impostors) of a batch with at least one impostor."""
    distance = [[d.item() for d in row] for row in distance_table(student.detach())]
    classes = labels.tolist()
    tuples = []
    for i in range(len(classes)):
        for p in range(len(classes)):
            if p == i or classes[p] != classes[i]:
                continue
            impostors = impostors_of(i, p, distance, classes, margin, max_impostors)
            if impostors:
                tuples.append((i, p, impostors))
    return tuples


def log_softmax(logits: Tensor) -> Tensor:
    """Log-softmax of one vector."""
    shifted = logits - logits.max().detach()
    return shifted - shifted.exp().sum().log()


def kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Sum over k of p_k (log p_k - log q_k), of two vectors of log-probabilities."""
    total = torch.zeros((), dtype=log_q.dtype)
    for k in range(len(log_p)):
        p = math.exp(log_p[k].item())
        if p > 0.0:
            total = total + p * (log_p[k].item() - log_q[k])
    return total


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
    """Mean over all tuples of KL(teacher's softmax of -D_T / tau_T || student's of -D / tau_S)."""
    d_student, d_teacher = distance_table(student), distance_table(teacher.detach())
    divergences = []
    for i, p, impostors in comparison_tuples(student, labels, margin, max_impostors):
        members = [p, *impostors]
        log_student = log_softmax(torch.stack([-d_student[i][m] / tau_student for m in members]))
        log_teacher = log_softmax(torch.stack([-d_teacher[i][m] / tau_teacher for m in members]))
        divergences.append((log_teacher.exp() * (log_teacher - log_student)).sum())
    if not divergences:
        return student.sum() * 0.0
    return torch.stack(divergences).mean()


def interval_sums(values: Tensor, first: Tensor) -> Tensor:
    """For each row i and place k of values [b, n]: the sum of values[i, first[i, k]] ... values[i, k]."""
    sums = torch.zeros_like(values)
    for i in range(values.shape[0]):
        for k in range(values.shape[1]):
            sums[i, k] = math.fsum(values[i, j].item() for j in range(int(first[i, k]), k + 1))
    return sums


def class_centres(embeddings: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Mean embedding [C, d] of each class, 0 for a class without images."""
    centres = []
    for c in range(num_classes):
        members = [embeddings[i] for i in range(len(labels)) if labels[i].item() == c]
        centres.append(sum(members) / len(members) if members else torch.zeros_like(embeddings[0]))
    return torch.stack(centres)


def class_scores(embeddings: Tensor, centres: Tensor) -> Tensor:
    """phi_T(x) . p_c / ||p_c|| for each image and class [B, C], 0 for a centre that is 0."""
    return torch.stack([torch.stack([(x * unit_vector(p)).sum() for p in centres]) for x in embeddings])


def class_posterior(scores: Tensor) -> Tensor:
    """Scores divided by their sum over all classes."""
    return torch.stack([row / sum(row) for row in scores])


def classes_in_batch(labels: Tensor) -> list[int]:
    """The set S, in ascending order."""
    return sorted(set(labels.tolist()))


def local_divergences(
    student_logits: Tensor, teacher_scores: Tensor, labels: Tensor, tau_student: float, tau_teacher: float
) -> list[Tensor]:
    """KL(softmax_S(teacher / tau_T) || softmax_S(student / tau_S)) of each image."""
    local = classes_in_batch(labels)
    divergences = []
    for student_row, teacher_row in zip(student_logits, teacher_scores):
        log_student = log_softmax(torch.stack([student_row[c] / tau_student for c in local]))
        log_teacher = log_softmax(torch.stack([teacher_row[c].detach() / tau_teacher for c in local]))
        divergences.append(kl(log_teacher, log_student))
    return divergences


def local_kd(
    student_logits: Tensor,
    teacher_scores: Tensor,
    labels: Tensor,
    *,
    tau_student: float = 1.0,
    tau_teacher: float = 2.0,
    weights: Tensor | None = None,
) -> Tensor:
    """Mean over the batch of weight times the local divergence."""
    divergences = local_divergences(student_logits, teacher_scores, labels, tau_student, tau_teacher)
    total = torch.zeros((), dtype=student_logits.dtype)
    for i, divergence in enumerate(divergences):
        total = total + divergence * (1.0 if weights is None else weights[i].item())
    return total / len(divergences)


def kd(student_logits: Tensor, teacher_logits: Tensor, *, tau: float = 4.0) -> Tensor:
    """tau^2 KL(softmax(teacher / tau) || softmax(student / tau)), mean over the batch."""
    total = torch.zeros((), dtype=student_logits.dtype)
    for student_row, teacher_row in zip(student_logits, teacher_logits.detach()):
        total = total + kl(log_softmax(teacher_row / tau), log_softmax(student_row / tau))
    return tau**2 * total / len(student_logits)


def two_sigmoid(x: float) -> float:
    """2 / (1 + exp(-x)) for x that is not positive."""
    return 2.0 * math.exp(x) / (1.0 + math.exp(x))


def confidence_weights(
    scores: Tensor, labels: Tensor | None = None, *, tau: float = 1.0, min_max: bool = False
) -> Tensor:
    """2 sigmoid(-CE(p, argmax p)), p the softmax over the batch's classes, or over all without labels."""
    local = list(range(scores.shape[1])) if labels is None else classes_in_batch(labels)
    weights = []
    for row in scores:
        p = [math.exp(value) for value in log_softmax(torch.stack([row[c] / tau for c in local])).tolist()]
        pseudo_label = p.index(max(p))
        cross_entropy = -math.log(p[pseudo_label])
        weights.append(two_sigmoid(-cross_entropy))
    if min_max:
        low, high = min(weights), max(weights)
        weights = [(w - low) / (high - low) if high > low else 1.0 for w in weights]
    return torch.tensor(weights, dtype=scores.dtype)


def gap_weights(
    student_logits: Tensor,
    teacher_scores: Tensor,
    labels: Tensor,
    *,
    tau_student: float = 1.0,
    tau_teacher: float = 2.0,
) -> Tensor:
    """2 sigmoid(-KL(teacher || student)) over the batch's classes."""
    divergences = local_divergences(student_logits, teacher_scores, labels, tau_student, tau_teacher)
    return torch.tensor([two_sigmoid(-d.item()) for d in divergences], dtype=student_logits.dtype)
