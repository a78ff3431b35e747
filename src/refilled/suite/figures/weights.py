"""Histograms of the weight per image, for classes that the teacher knows and for those it does not."""

from typing import Any

import torch

from refilled.suite.figures.figure import Figure, Studio
from refilled.suite.figures.trust import trust

BINS = 40
PUBLISHED_AUC = 0.959


def numbers(studio: Studio) -> dict[str, Any]:
    """Counts for each bin, and how well the weight tells the two kinds of classes apart."""
    from sklearn.metrics import roc_auc_score  # here: the library must import without scikit-learn

    found = trust(studio)
    parts = {"seen": found.seen, "unseen": ~found.seen}
    kinds = {}
    for kind, weights in found.weights.items():
        counts = {name: torch.histc(weights[part], BINS, 0, 1).int().tolist() for name, part in parts.items()}
        means = {f"mean_{name}": round(weights[part].mean().item(), 4) for name, part in parts.items()}
        kinds[kind] = {"auc": round(float(roc_auc_score(found.seen, weights)), 4), **means, **counts}
    return {
        "images": {name: int(part.sum()) for name, part in parts.items()},
        "edges": [number / BINS for number in range(BINS + 1)],
        "weights": kinds,
        "published_auc": PUBLISHED_AUC,
    }


def draw(numbers: dict[str, Any], canvas: Any) -> None:
    """A panel for each kind of weight; bars are shares of the images of their kind."""
    kinds = numbers["weights"]
    canvas.set_size_inches(4.5 * len(kinds), 3.6)
    for axis, (kind, found) in zip(canvas.subplots(1, len(kinds), squeeze=False)[0], kinds.items()):
        for name in ("seen", "unseen"):
            shares = [count / numbers["images"][name] for count in found[name]]
            axis.stairs(shares, numbers["edges"], fill=True, alpha=0.5, label=f"{name} classes")
        axis.set(title=f"{kind} weight, AUC {found['auc']:.3f}", xlabel="λᵢ / λ", ylabel="share of images")
        axis.legend()


FIGURE = Figure("weights", "Trust in the teacher, image by image", numbers, draw)
