"""The formulas of AML, SEED, CRD and SSKD as plain loops, slow and obvious; none of it is the package's."""

import math

import torch
from torch import Tensor

from . import reference

SAME = 1e-7  # two unit vectors nearer than this are one point


def squared_distance(u: Tensor, v: Tensor) -> Tensor:
    return ((u - v) ** 2).sum()


def tuples(student: Tensor, teacher: Tensor, labels: Tensor, negatives: int, with_itself: bool):
    """For each anchor: squared distances to its positives, and to its nearest negatives."""
    anchors = [reference.unit_vector(row) for row in student]
    others = [reference.unit_vector(row) for row in teacher.detach()]
    classes = labels.tolist()
    for i in range(len(classes)):
        positives = [p for p in range(len(classes)) if classes[p] == classes[i] and (with_itself or p != i)]
        rest = [n for n in range(len(classes)) if classes[n] != classes[i]]
        rest.sort(key=lambda n: squared_distance(anchors[i], others[n]).item())
        yield (
            [squared_distance(anchors[i], others[p]) for p in positives],
            [squared_distance(anchors[i], others[n]) for n in rest[:negatives]],
        )


def asymmetric_contrastive(student, teacher, labels, *, margin=0.7, negatives=5, with_itself=True):
    total = student.sum() * 0
    for near, far in tuples(student, teacher, labels, negatives, with_itself):
        if near:
            total = total + sum(near) / len(near) / 2
        for squared in far:
            distance = squared.sqrt() if squared.item() > SAME**2 else torch.zeros((), dtype=student.dtype)
            if distance.item() < margin:
                total = total + (margin - distance) ** 2 / 2
    return total / len(labels)


def asymmetric_triplet(student, teacher, labels, *, margin=0.1, negatives=5, with_itself=True):
    total = student.sum() * 0
    for near, far in tuples(student, teacher, labels, negatives, with_itself):
        for to_negative in far:
            for to_positive in near:
                excess = to_positive - to_negative + margin
                if excess.item() > 0:
                    total = total + excess / len(near)
    return total / len(labels)


def similarity_distillation(
    student, teacher, keys, *, compared=None, similar=None, tau_student=0.2, tau_teacher=0.01
):
    total = student.sum() * 0
    for i in range(len(student)):
        s, t = reference.unit_vector(student[i]), reference.unit_vector(teacher[i].detach())
        of_student, of_teacher = [(s * t).sum() / tau_student], [(t * t).sum() / tau_teacher]
        for k in range(len(keys)):
            if compared is not None and not compared[i, k]:
                continue
            key = reference.unit_vector(keys[k].detach())
            of_student.append((s * key).sum() / tau_student)
            may = similar is None or similar[i, k]
            of_teacher.append((t * key).sum() / tau_teacher if may else torch.tensor(-math.inf))
        log_student = reference.log_softmax(torch.stack(of_student))
        wanted = torch.stack([x.double() for x in of_teacher])
        wanted = (wanted - wanted.max()).exp()
        total = total - ((wanted / wanted.sum()) * log_student).sum()
    return total / len(student)


def memory_scores(anchors, memory, candidates, *, tau=0.07):
    rows = []
    for anchor, drawn in zip(anchors, candidates.tolist()):
        u = reference.unit_vector(anchor)
        rows.append(torch.stack([(u * reference.unit_vector(memory[k].detach())).sum() / tau for k in drawn]))
    return torch.stack(rows)


def noise_contrast(scores, log_z, images):
    z, count = math.exp(log_z.item()), scores.shape[1] - 1
    noise, total = count / images, scores.sum() * 0
    for row in scores:
        p = row.exp() / z
        total = total - torch.log(p[0] / (p[0] + noise))
        for k in range(1, count + 1):
            total = total - torch.log(noise / (p[k] + noise))
    return total / len(scores)


def contrastive_scores(transformed, normal):
    units = [reference.unit_vector(row) for row in normal]
    return torch.stack(
        [torch.stack([(reference.unit_vector(row) * u).sum() for u in units]) for row in transformed]
    )


def contrastive_prediction(transformed, normal, origins):
    scores = contrastive_scores(transformed, normal)
    return -sum(reference.log_softmax(row)[o] for row, o in zip(scores, origins.tolist())) / len(origins)


def selective_kd(student, teacher, labels, *, tau, wrong_share):
    answers = []
    for i, label in enumerate(labels.tolist()):
        level = sum(1 for score in teacher[i].tolist() if score > teacher[i, label].item())
        answers.append((level, i))
    right = [i for level, i in answers if level == 0]
    wrong = [i for level, i in sorted(answers) if level > 0]
    kept = right + wrong[: int(len(wrong) * wrong_share + 1e-9)]
    total = student.sum() * 0
    for i in kept:
        total = total + reference.kl(
            reference.log_softmax(teacher[i].detach() / tau), reference.log_softmax(student[i] / tau)
        )
    return tau**2 * total / max(len(kept), 1)
