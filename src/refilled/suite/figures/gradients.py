"""What a teacher adds to the gradient of the last layer, as the number of classes grows.

Ye, Lu, Zhan, "Discussions on LKD": mean over classes c of ‖∂O_ce/∂w_c - ∂O_kd/∂w_c‖ for single instances, at
the beginning of training. Both objectives hold the same cross-entropy, so the difference is the gradient of
the distillation term alone; for one instance it is the derivative by logit c times the embedding. The mean is
over all classes: those that are not in the batch count as 0 for local distillation.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from refilled import evaluation, objectives
from refilled.data.randomness import seeded_generator
from refilled.labels import LabelSpace
from refilled.models import load
from refilled.objectives.divergence import divergence
from refilled.runs.prepare import Prepared, make_teacher, place
from refilled.suite.figures.figure import Figure, Studio
from refilled.suite.figures.images import images_of
from refilled.suite.tables.cifar100 import standard

COUNTS = (2, 5, 10, 20, 40, 60, 80, 100)
DRAWS = 10
STUDENT, TAU_TEACHER = "wrn-16-2", 4.0
"""Lambda and the student's temperature are 1, as the paper has them for standard distillation."""
_LABELS = {
    "kd": "KD, teacher's head",
    "kd-centres": "KD, class centres",
    "lkd": "LKD",
    "lkd-weighted": "LKD, weighted",
}


def numbers(studio: Studio) -> dict[str, Any]:
    """Mean and deviation of the norm over draws of classes and images, for each number of classes."""
    cell = studio.cell(standard("kd", STUDENT))
    folder = studio.teacher(cell)
    assert folder is not None, "this cell has a teacher"
    teacher = make_teacher(folder, studio.torch_device)
    images = images_of(studio, cell, teacher)
    outputs = evaluation.predict(teacher, images.train)
    order = [teacher.classes.label(name) for name in images.classes]
    centres = objectives.class_centres(outputs.embeddings, outputs.labels, len(images.classes))
    scores = objectives.class_scores(outputs.embeddings, centres)
    counts = [count for count in COUNTS if count <= len(images.classes)]
    found: dict[str, dict[str, list[float]]] = {name: {"mean": [], "std": []} for name in _LABELS}
    for count in counts:
        drawn = [
            _draw(cell.student, images, outputs.logits[:, order], scores, count, n) for n in range(DRAWS)
        ]
        for name, kept in found.items():
            over = evaluation.spread([norms[name] for norms in drawn])
            kept["mean"].append(over.mean)
            kept["std"].append(over.std)
    return {
        "classes": counts,
        "draws": DRAWS,
        "batch_size": images.train.batch_size,
        "tau_teacher": TAU_TEACHER,
        "teacher": teacher.spec,
        "student": cell.student,
        "terms": found,
    }


def _draw(
    student: str, images: Prepared, head: Tensor, scores: Tensor, count: int, draw: int
) -> dict[str, float]:
    """Norms for one draw of classes and images, and a fresh student.

    Args:
        student: its name.
        images: of the data.
        head: the teacher's logits [N, C] in the data's class order.
        scores: of the class centres [N, C].
        count: how many classes.
        draw: which draw it is.
    """
    train, generator = images.train, seeded_generator(0, count, draw)
    chosen = torch.randperm(len(images.classes), generator=generator)[:count].sort().values
    new_label = torch.full((len(images.classes),), -1)
    new_label[chosen] = torch.arange(count)
    labels = new_label.to(train.device)[train.labels]
    among = (labels >= 0).nonzero().squeeze(1)
    picked = torch.randperm(len(among), generator=generator)[: train.batch_size]
    rows = among[picked.to(among.device)]
    torch.manual_seed(draw)
    classes = LabelSpace(images.classes[int(label)] for label in chosen)
    network = load(student, classes, image_size=images.size, channels=train.source.shape[1])
    network.normalise_by(images.mean, images.std)
    network = place(network, train.device).train()  # as in the first step: batch statistics
    with torch.no_grad():
        embeddings, logits = network(train.source.take(rows).float() / 255)
    chosen = chosen.to(train.device)
    of_head, of_centres, labels = head[rows][:, chosen], scores[rows][:, chosen], labels[rows]
    weights = objectives.confidence_weights(of_centres, labels, tau=TAU_TEACHER)

    def local(given: Tensor, weights: Tensor | None = None) -> Tensor:
        return objectives.local_kd(given, of_centres, labels, tau_teacher=TAU_TEACHER, weights=weights)

    terms: dict[str, Callable[[Tensor], Tensor]] = {
        "kd": lambda given: _divergence(given, of_head),
        "kd-centres": lambda given: _divergence(given, of_centres),
        "lkd": local,
        "lkd-weighted": lambda given: local(given, weights),
    }
    return {name: _norm(term, logits.float(), embeddings.float()) for name, term in terms.items()}


def _divergence(logits: Tensor, scores: Tensor) -> Tensor:
    """Mean over the batch of KL(teacher || student) over all classes, from [B, C] each."""
    teacher = (scores / TAU_TEACHER).log_softmax(dim=1)
    return divergence(teacher, logits.log_softmax(dim=1)).sum() / len(logits)


def _norm(term: Callable[[Tensor], Tensor], logits: Tensor, embeddings: Tensor) -> float:
    """Mean over instances and classes of the gradient's norm by the class's weights.

    Args:
        term: from logits [B, C] to the mean of a term over the batch.
        logits: [B, C].
        embeddings: [B, d] from which they were made.
    """
    given = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(term(given), given)
    per_instance = gradient.abs() * len(logits)  # the mean over the batch divided it
    return (per_instance * embeddings.norm(dim=1, keepdim=True)).mean().item()


def draw(numbers: dict[str, Any], canvas: Any) -> None:
    """A line for each term."""
    canvas.set_size_inches(5.4, 4.2)
    axis = canvas.subplots()
    for name, found in numbers["terms"].items():
        axis.errorbar(
            numbers["classes"], found["mean"], yerr=found["std"], capsize=2, marker="o", label=_LABELS[name]
        )
    axis.set(xlabel="classes", ylabel="mean norm of the gradient", yscale="log")
    axis.legend()


FIGURE = Figure("gradients", "What the teacher adds to the gradient of the last layer", numbers, draw)
