"""The whole method in one plain training loop: no trainer, only PyTorch and ``refilled.objectives``.

A teacher learns the digits 0-7. A student has to learn the digits 4-9 from five images of each: four of
its classes the teacher knows, two it has never seen. Stage 1: the student learns to compare images as the
teacher does. Stage 2: it learns to classify, guided by the class centres in the teacher's embedding, the
more so the surer those are. Beside it the same student learns alone, for the same number of epochs.

    python examples/plain_loop.py

Accuracy on the test images of 4-9, mean and standard deviation of 12 trials (seeds 0 to 11; each with a
split, a teacher, shots and weights of its own), both students after 200 epochs:

    student alone 90.1 ± 2.3 %, distilled 91.8 ± 2.2 %: a gain of 1.7 points, 95 % interval 0.6 to 2.8

Three trials, as run here, take about 13 s on two CPU cores (Intel Xeon), and their mean gain is
good to about two points only: a single trial may well show a loss.

Settings are the library's defaults but for the weights, which are the paper's: the confidence of the class
centres, not that of the teacher's head. Compared on validation images, over other seeds: student alone
88.3 %, defaults 90.1 %, all of the paper's settings 89.5 %, these 91.2 % (12 trials, 200 epochs); with
only 100 epochs 90.0, 86.9, 90.0 and 91.0 % (20 trials): there the defaults do harm. About 25 settings were
tried so; every seed shuffles the same 1,797 images, so validation and test are apart within a trial only.
"""

import math
import time
from collections.abc import Callable, Iterator

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import refilled
from refilled.objectives import (
    class_centres,
    class_scores,
    comparison_matching,
    confidence_weights,
    local_kd,
)

SHOTS, EPOCHS, TEACHER_EPOCHS = 5, 200, 20
STAGE_1_SHARE = 0.5  # of the epochs
TAU_COMPARISON = 0.1  # stage 1: temperature of both models' comparisons
TAU_TEACHER, STRENGTH = 2.0, 2.0  # stage 2: temperature of the teacher's scores, weight of its term
LR, MOMENTUM, WEIGHT_DECAY = 0.1, 0.9, 5e-4


# --- data: 1,797 images of 8 x 8 pixels, 40 % to learn from, 20 % validation, 40 % test ------------------


def digits(seed: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Images [N, 1, 8, 8] from 0 to 1 and labels [N] of the three parts, shuffled anew for each seed."""
    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(bunch.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    parts = order.tensor_split([int(0.4 * len(order)), int(0.6 * len(order))])
    return {name: (images[rows], labels[rows]) for name, rows in zip(("train", "val", "test"), parts)}


def of_classes(part: tuple[Tensor, Tensor], first: int, last: int, shots: int | None = None):
    """The images of some digits, relabelled from 0; only the first few of each if ``shots`` is given."""
    images, labels = part
    rows = torch.cat([(labels == digit).nonzero()[:shots, 0] for digit in range(first, last + 1)])
    return images[rows], labels[rows] - first


def shifted(images: Tensor) -> Tensor:
    """Each image moved by up to a pixel in each direction, each by a draw of its own."""
    windows = F.pad(images, (1, 1, 1, 1)).unfold(2, 8, 1).unfold(3, 8, 1)  # [B, 1, 3, 3, 8, 8]
    down, right = torch.randint(0, 3, (2, len(images)))
    return windows[torch.arange(len(images)), :, down, right]


# --- one loop for all: teacher, student alone, both stages ----------------------------------------------

Loss = Callable[[Tensor, Tensor], Tensor]


def train(loss: Loss, parameters: Iterator[nn.Parameter], images: Tensor, labels: Tensor, epochs: int):
    """SGD with a learning rate that falls to zero along a cosine."""
    optimizer = torch.optim.SGD(
        parameters, lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, nesterov=True
    )
    for epoch in range(epochs):
        optimizer.param_groups[0]["lr"] = LR * 0.5 * (1 + math.cos(math.pi * epoch / epochs))
        for rows in torch.randperm(len(labels)).split(64):
            optimizer.zero_grad()
            loss(shifted(images[rows]), labels[rows]).backward()
            optimizer.step()


def network(first: int, last: int, seed: int) -> nn.Module:
    """A small convolutional network that knows some digits: ``embed``, ``classify``, or both by a call."""
    torch.manual_seed(seed)
    return refilled.load(
        "convnet-2", [str(digit) for digit in range(first, last + 1)], image_size=8, channels=1
    )


def learn_alone(model: nn.Module, images: Tensor, labels: Tensor, epochs: int) -> nn.Module:
    """Cross-entropy on the labels: the teacher's training, and the baseline for the student."""
    train(lambda x, y: F.cross_entropy(model(x)[1], y), model.parameters(), images, labels, epochs)
    return model.eval()


def learn_from(
    teacher: nn.Module, student: nn.Module, images: Tensor, labels: Tensor, epochs: int
) -> nn.Module:
    """The method: the embedding first, then the classifier; the epochs of both add up to ``epochs``."""

    def stage_1(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            teacher_z = teacher.embed(x)
        return comparison_matching(
            student.embed(x), teacher_z, y, tau_student=TAU_COMPARISON, tau_teacher=TAU_COMPARISON
        )

    def stage_2(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            scores = class_scores(teacher.embed(x), centres)  # [B, 6]: the teacher's view of the new classes
            weights = confidence_weights(scores, y, tau=TAU_TEACHER)  # [B]: how far to trust it
        _, logits = student(x)
        return F.cross_entropy(logits, y) + STRENGTH * local_kd(
            logits, scores, y, tau_teacher=TAU_TEACHER, weights=weights
        )

    first = round(STAGE_1_SHARE * epochs)
    train(stage_1, student.backbone_parameters(), images, labels, first)
    with torch.no_grad():
        centres = class_centres(teacher.embed(images), labels, len(student.classes))
    train(stage_2, student.parameters(), images, labels, epochs - first)
    return student.eval()


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Share of images that are classified right."""
    return (model(images)[1].argmax(1) == labels).double().mean().item()


def main(seeds: int = 3, epochs: int = EPOCHS, teacher_epochs: int = TEACHER_EPOCHS, part: str = "test"):
    """Mean accuracies of teacher, student alone and distilled student; part "val" to try settings on."""
    began, results = time.monotonic(), []
    for seed in range(seeds):
        data = digits(seed)
        teacher = learn_alone(network(0, 7, seed), *of_classes(data["train"], 0, 7), teacher_epochs)
        few, judge = of_classes(data["train"], 4, 9, SHOTS), of_classes(data[part], 4, 9)
        alone = learn_alone(network(4, 9, seed), *few, epochs)
        distilled = learn_from(teacher, network(4, 9, seed), *few, epochs)
        own = accuracy(teacher, *of_classes(data[part], 0, 7))
        results.append((own, accuracy(alone, *judge), accuracy(distilled, *judge)))
        print(
            "seed {}: teacher {:.1%} of 0-7; on 4-9 student alone {:.1%}, distilled {:.1%}".format(
                seed, *results[-1]
            )
        )
    means = torch.tensor(results, dtype=torch.float64).mean(0).tolist()
    print("mean:   teacher {:.1%} of 0-7; on 4-9 student alone {:.1%}, distilled {:.1%}".format(*means))
    print(f"{seeds} seeds in {time.monotonic() - began:.0f} s")
    return means


if __name__ == "__main__":
    main()
