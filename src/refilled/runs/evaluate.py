"""How good is a finished student on some data?"""

from dataclasses import dataclass
from pathlib import Path

from refilled import evaluation
from refilled.data import Batches, has_lists, open_data
from refilled.errors import UserError, unknown
from refilled.labels import LabelSpace
from refilled.models import read_network
from refilled.runs.folder import CONFIG, read_run_file
from refilled.runs.holding import choose_holding
from refilled.runs.prepare import place
from refilled.runs.settings import DataSettings
from refilled.training import pick_device

PARTS = ("test", "val", "train")


@dataclass(frozen=True)
class Evaluation:
    """Accuracies, shares from 0 to 1, of one student on one part of some data."""

    part: str
    images: int
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
        part: ``test``, ``val`` or ``train``.
        device: where to compute.
        skip_bad_images: leave out images that cannot be read.
    """
    if part not in PARTS:
        raise unknown("part", part, PARTS)
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
    chosen = getattr(splits.only(known), part)
    if len(chosen) == 0:
        raise UserError(f"{data} has no {part} images of the student's classes")
    with choose_holding(str(data), [chosen], side, DataSettings(), network.device) as holding:
        images, labels, skipped = holding.load(chosen, side, network.device)
    batches = Batches(images, labels, batch_size=512)
    outputs = evaluation.predict(network, batches)
    own = outputs.labels.new_tensor([here for here, _ in overlap.pairs])[outputs.labels]
    shares = evaluation.per_class(outputs.logits.argmax(1), own, len(network.classes))
    return Evaluation(
        part=part,
        images=len(own),
        accuracy=evaluation.top_k(outputs.logits, own),
        top5=evaluation.top_k(outputs.logits, own, 5) if len(network.classes) > 5 else None,
        per_class={network.classes[here]: shares[here] for here, _ in overlap.pairs},
        left_out=overlap.only_there,
        skipped=skipped,
    )
