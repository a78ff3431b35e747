"""How good is a finished student on some data?"""

from dataclasses import dataclass
from pathlib import Path

import torch

from refilled import evaluation
from refilled.data import Batches, are_same, has_lists, has_parts, open_data
from refilled.errors import UserError, unknown
from refilled.labels import LabelSpace
from refilled.models import read_network
from refilled.runs.folder import CONFIG, read_run_file
from refilled.runs.holding import choose_holding
from refilled.runs.prepare import place
from refilled.runs.settings import DataSettings
from refilled.training import pick_device

PARTS = ("test", "val", "train")
ALL = "all"
"""Of all parts."""


@dataclass(frozen=True)
class Evaluation:
    """Accuracies, shares from 0 to 1, of one student on one part of some data."""

    part: str
    images: int
    apart: int
    """Images of other parts, where data had to be divided that are not those of the run."""
    learned: bool
    """Whether the student has learned from some of these images."""
    accuracy: float
    top5: float | None
    per_class: dict[str, float | None]
    left_out: tuple[str, ...]
    """Classes of the data that the student does not know; their images are not counted."""
    skipped: int
    """Images that could not be read."""


def evaluate(
    run: str | Path,
    data: str | Path,
    *,
    part: str = "test",
    device: str = "auto",
    skip_bad_images: bool = False,
) -> Evaluation:
    """Accuracy of a run's student on data; classes are matched by name.

    Args:
        run: a finished run folder.
        data: ``digits``, a folder of images, or CIFAR-100's folder. Where a split has to be made it is
            made as in the run, so that the test images are the ones that the student has not seen.
        part: ``test``, ``val`` or ``train``; ``all`` for data of which the student has seen no image.
        device: where to compute.
        skip_bad_images: leave out images that cannot be read.
    """
    if part not in (*PARTS, ALL):
        raise unknown("part", part, (*PARTS, ALL))
    network = place(read_network(Path(run)), pick_device(device))
    config = read_run_file(Path(run) / CONFIG)
    try:
        of_data, side = config["run"]["settings"]["data"], config["image_size"]
        split = {name: of_data[name] for name in ("split_seed", "val_fraction")}
        if has_lists(data):
            split["test_fraction"] = of_data.get("test_fraction")  # younger than some runs
    except (KeyError, TypeError):
        raise UserError(
            f"{Path(run) / CONFIG} is damaged: it does not say how the run split its data"
        ) from None
    splits = open_data(
        data,
        **split,
        skip_bad_images=skip_bad_images,
    )
    overlap = network.classes.overlap(splits.classes)
    if not overlap.shared:
        known_names = ", ".join(network.classes[:5]) + (", …" if len(network.classes) > 5 else "")
        raise UserError(
            f"{run} knows none of the {len(splits.classes)} classes of {data}; it knows {known_names}"
        )
    known = LabelSpace(splits.classes[there] for _, there in overlap.pairs)
    is_own = are_same(data, config["run"].get("data") or "")
    own_images = splits.only(known)
    every = {name: getattr(own_images, name) for name in PARTS}
    chosen = [images for name, images in every.items() if part in (name, ALL) and len(images)]
    if not chosen:
        raise UserError(f"{data} has no {part} images of the student's classes")
    skipped, found = 0, []
    with choose_holding(str(data), chosen, side, DataSettings(), network.device) as holding:
        for images_of_part in chosen:
            images, labels, bad = holding.load(images_of_part, side, network.device)
            found.append(evaluation.predict(network, Batches(images, labels, batch_size=512)))
            skipped += bad
    logits, of_data = (torch.cat([getattr(one, name) for one in found]) for name in ("logits", "labels"))
    own = of_data.new_tensor([here for here, _ in overlap.pairs])[of_data]
    shares = evaluation.per_class(logits.argmax(1), own, len(network.classes))
    return Evaluation(
        part=part,
        images=len(own),
        apart=0 if is_own or has_parts(data) else sum(map(len, every.values())) - sum(map(len, chosen)),
        learned=is_own and part in ("train", ALL),
        accuracy=evaluation.top_k(logits, own),
        top5=evaluation.top_k(logits, own, 5) if len(network.classes) > 5 else None,
        per_class={network.classes[here]: shares[here] for here, _ in overlap.pairs},
        left_out=overlap.only_there,
        skipped=skipped,
    )
