"""The training images that trust the teacher most and least, of classes that it knows and of others."""

import base64
import io
from typing import Any

from PIL import Image
from torch import Tensor

from refilled.suite.figures.figure import Figure, Studio
from refilled.suite.figures.trust import trust

COUNT = 8
WEIGHT = "pl"
"""The paper's weight; that of a head which knows its images by heart is 1 for nearly all of them."""


def numbers(studio: Studio) -> dict[str, Any]:
    """Rows, classes and weights of the images, and the images themselves as PNG in base64."""
    found = trust(studio)
    weights, train = found.weights[WEIGHT], found.images.train
    labels, groups = train.labels.cpu(), []
    for kind, part in (("seen", found.seen), ("unseen", ~found.seen)):
        rows = part.nonzero().squeeze(1)
        order = rows[weights[rows].argsort(descending=True, stable=True)]
        count = min(COUNT, len(order) // 2)
        for name, chosen in (("most", order[:count]), ("least", order.flip(0)[:count])):
            shown = [
                {
                    "row": int(row),
                    "class": found.images.classes[int(labels[row])],
                    "weight": round(float(weights[row]), 4),
                    "png": _png(pixels),
                }
                for row, pixels in zip(chosen, train.source.take(chosen).cpu())
            ]
            groups.append({"name": f"{kind}, {name} trusted", "images": shown})
    return {"weight": WEIGHT, "groups": groups}


def _png(pixels: Tensor) -> str:
    """An image uint8 [C, side, side] as PNG in base64."""
    array = (
        pixels.permute(1, 2, 0).squeeze(2).numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).numpy()
    )
    file = io.BytesIO()
    Image.fromarray(array).save(file, format="PNG")
    return base64.b64encode(file.getvalue()).decode()


def draw(numbers: dict[str, Any], canvas: Any) -> None:
    """A row of images for each group."""
    groups = numbers["groups"]
    columns = max(len(group["images"]) for group in groups)
    canvas.set_size_inches(1.3 * columns + 1, 1.7 * len(groups) + 0.5)
    axes = canvas.subplots(len(groups), columns, squeeze=False)
    for row, group in zip(axes, groups):
        row[0].set_ylabel(group["name"].replace(", ", "\n"), fontsize=8)
        for axis in row:
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
        for axis, shown in zip(row, group["images"]):
            with Image.open(io.BytesIO(base64.b64decode(shown["png"]))) as image:
                axis.imshow(image.convert("RGB"), interpolation="nearest")
            axis.set_title(f"{shown['class']} {shown['weight']:.2f}", fontsize=7)


FIGURE = Figure("trusted", "Images that trust the teacher most and least", numbers, draw)
