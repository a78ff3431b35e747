"""The formulas over feature maps as plain loops: slow and obvious. Nothing is shared with the package."""

import math

import torch
from torch import Tensor

from . import reference


def part(index: int, parts: int, length: int) -> range:
    """Positions of one of ``parts`` parts of a line of ``length``; where they do not fit, parts overlap."""
    return range(math.floor(index * length / parts), math.ceil((index + 1) * length / parts))


def averaged_down(maps: Tensor, height: int, width: int) -> Tensor:
    """Each position is the mean over its part of the larger maps."""
    rows, columns = min(height, maps.shape[2]), min(width, maps.shape[3])
    cells = [
        [
            torch.stack(
                [
                    maps[:, :, y, x]
                    for y in part(row, rows, maps.shape[2])
                    for x in part(column, columns, maps.shape[3])
                ]
            ).mean(0)
            for column in range(columns)
        ]
        for row in range(rows)
    ]
    return torch.stack([torch.stack(line, dim=2) for line in cells], dim=2)


def same_size(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    return averaged_down(student, *teacher.shape[2:]), averaged_down(teacher.detach(), *student.shape[2:])


def attention(image: Tensor) -> Tensor:
    """Maps [C, H, W] of an image to a vector of H W numbers."""
    _, height, width = image.shape
    looks = [sum(channel[y, x] ** 2 for channel in image) for y in range(height) for x in range(width)]
    return torch.stack(looks)


def attention_transfer(student: Tensor, teacher: Tensor) -> Tensor:
    student, teacher = same_size(student, teacher)
    total, count = student.sum() * 0, 0
    for ours, theirs in zip(student, teacher):
        gap = reference.unit_vector(attention(ours)) - reference.unit_vector(attention(theirs))
        total, count = total + (gap**2).sum(), count + len(gap)
    return total / count


def neuron_selectivity(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean of the kernel within and between the channels of both."""
    student, teacher = same_size(student, teacher)
    total = student.sum() * 0
    for ours, theirs in zip(student, teacher):
        x = [reference.unit_vector(channel.flatten()) for channel in ours]
        y = [reference.unit_vector(channel.flatten()) for channel in theirs]

        def mean(some: list[Tensor], others: list[Tensor]) -> Tensor:
            return sum((a * b).sum() ** 2 for a in some for b in others) / (len(some) * len(others))

        total = total + mean(x, x) + mean(y, y) - 2 * mean(x, y)
    return total / len(student)


def hint(predicted: Tensor, teacher: Tensor) -> Tensor:
    gaps = [(a - b) ** 2 / 2 for a, b in zip(predicted.flatten(), teacher.detach().flatten())]
    return sum(gaps) / len(gaps)


def variational_information(predicted: Tensor, variance: Tensor, teacher: Tensor) -> Tensor:
    """Minus the mean log-density, less its constant."""
    total, count = predicted.sum() * 0, 0
    for ours, theirs in zip(predicted, teacher.detach()):
        for channel, (mean, value) in enumerate(zip(ours, theirs)):
            density = torch.distributions.Normal(mean, variance[channel].sqrt()).log_prob(value)
            total = total - (density + math.log(2 * math.pi) / 2).sum()
            count += value.numel()
    return total / count


def partial_distance(student: Tensor, teacher: Tensor, margins: Tensor) -> Tensor:
    total = student.sum() * 0
    for ours, theirs in zip(student, teacher.detach()):
        for s, t, margin in zip(ours, theirs, margins.tolist()):
            for a, b in zip(s.flatten(), t.flatten().tolist()):
                b = max(b, margin)
                idle = a.item() <= b <= 0
                total = total + (0 if idle else (a - b) ** 2)
    return total / len(student)


def margins(maps: Tensor) -> list[float]:
    """Mean of the negative values of each channel of maps [B, C, H, W]; 0 where there are none."""
    found = []
    for channel in maps.transpose(0, 1):
        negative = [value for value in channel.flatten().tolist() if value < 0]
        found.append(sum(negative) / len(negative) if negative else 0.0)
    return found


def jacobian_matching(student: Tensor, teacher: Tensor) -> Tensor:
    total = student.sum() * 0
    for ours, theirs in zip(student, teacher.detach()):
        gap = reference.unit_vector(ours.flatten()) - reference.unit_vector(theirs.flatten())
        total = total + (gap**2).sum()
    return total / len(student)
