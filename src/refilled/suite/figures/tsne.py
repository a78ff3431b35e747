"""t-SNE of test embeddings: the student alone, and after comparison matching (stage 1)."""

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from refilled import evaluation
from refilled.data.randomness import seeded_generator
from refilled.suite.cell import Cell
from refilled.suite.figures.figure import Figure, Studio
from refilled.suite.figures.images import images_of
from refilled.suite.tables.cifar100 import NCM_AFTER_STAGE_1 as TABLE

CLASSES = 10
STUDENT = "wrn-16-2"
_PANELS = {"student": "student alone", "refilled-stage1": "after stage 1"}
_PER_CLASS, _PER_CLASS_TINY = 100, 8


def numbers(studio: Studio) -> dict[str, Any]:
    """Places in the plane of the same test images for both students, and their accuracy as class means."""
    shown = []
    for name, cell in _cells(studio).items():
        result = studio.student(cell)
        assert result.student is not None, "a finished run has its student"
        images = images_of(studio, cell, result.student)
        rows, classes = _rows(images.test.labels, _PER_CLASS_TINY if studio.tiny else _PER_CLASS)
        outputs = evaluation.predict(result.student, images.test)
        shown.append(
            {
                "name": name,
                "cell": cell.describe(),
                "ncm": result.ncm,
                "classes": [images.classes[label] for label in classes],
                "labels": outputs.labels[rows].tolist(),
                "points": _plane(outputs.embeddings[rows]),
            }
        )
    return {"panels": shown}


def _cells(studio: Studio) -> dict[str, Cell]:
    """The two students, by what is said of them: of the first seed of which both are kept, else of seed 0."""
    of_seeds = [
        {
            name: studio.cell(TABLE.cell({"method": method, "student": STUDENT})).with_seed(seed)
            for method, name in _PANELS.items()
        }
        for seed in range(studio.seeds)
    ]
    kept = (cells for cells in of_seeds if all(map(studio.is_kept, cells.values())))
    return next(kept, of_seeds[0])


def _rows(labels: Tensor, most: int) -> tuple[Tensor, list[int]]:
    """Rows of the first images of some classes, drawn once and for all, and the classes."""
    count = int(labels.max()) + 1
    chosen = torch.randperm(count, generator=seeded_generator(0))[:CLASSES].sort().values.tolist()
    return torch.cat([(labels == label).nonzero().squeeze(1)[:most] for label in chosen]), chosen


def _plane(embeddings: Tensor) -> list[list[float]]:
    """Embeddings [N, d], l2-normalised, in two dimensions [N, 2]."""
    from sklearn.manifold import TSNE  # here: the library must import without scikit-learn

    perplexity = min(30.0, (len(embeddings) - 1) / 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where threads cannot be counted, scikit-learn warns
        found = TSNE(init="pca", perplexity=perplexity, random_state=0).fit_transform(
            F.normalize(embeddings.float(), dim=1).cpu().numpy()
        )
    return [[round(float(x), 3), round(float(y), 3)] for x, y in found]


def draw(numbers: dict[str, Any], canvas: Any) -> None:
    """A panel for each student, a colour for each class."""
    panels = numbers["panels"]
    canvas.set_size_inches(4.5 * len(panels), 4.8)
    for axis, panel in zip(canvas.subplots(1, len(panels), squeeze=False)[0], panels):
        for number, label in enumerate(dict.fromkeys(panel["labels"])):
            places = [place for place, other in zip(panel["points"], panel["labels"]) if other == label]
            axis.scatter(*zip(*places), s=5, color=f"C{number % 10}", label=panel["classes"][number])
        axis.set(title=f"{panel['name']}, NCM {100 * panel['ncm']:.1f} %", xticks=[], yticks=[])
    handles, names = axis.get_legend_handles_labels()
    canvas.legend(handles, names, loc="outside lower center", ncols=5, fontsize="small", markerscale=2)


FIGURE = Figure("tsne", "Test embeddings of ten classes", numbers, draw)
