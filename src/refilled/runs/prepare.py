"""Data, teacher and student made ready for each other, on the device."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from refilled.data import (
    Batches,
    ImageSet,
    Progress,
    Splits,
    channel_statistics,
    check_trainable,
    open_data,
    open_unlabelled,
)
from refilled.data.source import Source, in_order
from refilled.errors import UserError
from refilled.labels import LabelSpace
from refilled.models import Network, load
from refilled.models.native import is_native
from refilled.runs.holding import choose_holding
from refilled.runs.settings import DataSettings
from refilled.training import TrainSettings

OF_OPENING = (
    "classes", "class_order", "shots", "val_fraction", "test_fraction", "split_seed", "skip_bad_images",
)  # fmt: skip
"""Settings of data that is not open yet."""
FOLDER_SIZE = 64  # side of the images for a network of ours that learns from a folder of photographs


@dataclass(frozen=True)
class Prepared:
    """Images on the device; ``val`` is None where nothing is held out."""

    name: str
    classes: LabelSpace
    train: Batches
    val: Batches | None
    test: Batches
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    notes: tuple[str, ...]
    """Lines that the person should see: splits made, images skipped."""

    def relabelled(self, labels: list[int], classes: LabelSpace) -> "Prepared":
        """The same images with label ``labels[i]`` for i, among other classes; for judging."""

        def part(batches: Batches) -> Batches:
            new = torch.tensor(labels, device=batches.device)[batches.labels]
            return Batches(batches.source, new, batches.batch_size, unlabelled=batches.unlabelled)

        val = part(self.val) if self.val is not None else None
        return replace(self, classes=classes, train=part(self.train), val=val, test=part(self.test))


def read_splits(data: str | Path | Splits, settings: DataSettings, seed: int) -> Splits:
    """Open the data as the settings say; a :class:`Splits` that was opened already is taken as it is."""
    if isinstance(data, Splits):
        ignored = [name for name in OF_OPENING if getattr(settings, name) != getattr(DataSettings(), name)]
        if ignored:
            raise UserError(
                f"the data is open already; give {', '.join(ignored)} to refilled.data.open_data instead"
            )
        return _with_classes(data)
    return _with_classes(
        open_data(
            data,
            classes=settings.classes,
            class_order=settings.class_order,
            shots=settings.shots,
            shots_seed=seed,
            split_seed=settings.split_seed,
            val_fraction=settings.val_fraction,
            test_fraction=settings.test_fraction,
            skip_bad_images=settings.skip_bad_images,
        )
    )


def _with_classes(splits: Splits) -> Splits:
    if len(splits.classes) < 2:
        raise UserError(f"{splits.name}: at least 2 classes are needed, not {len(splits.classes)}")
    return splits


def read_unlabelled(data: str | Path | Splits, settings: DataSettings, splits: Splits) -> ImageSet | None:
    """The images without labels that the settings ask for, beside the data, which is ``splits``; or None."""
    if isinstance(data, Splits) and settings.has_unlabelled:
        raise UserError(
            "the data is open already; give it its images without labels too: "
            "dataclasses.replace(data, unlabelled=refilled.data.open_unlabelled(...))"
        )
    if isinstance(data, Splits):
        found = data.unlabelled
    else:
        found = _open_unlabelled(data, settings) if settings.has_unlabelled else None
    if found is not None and found.pixels.channels != splits.channels:
        raise UserError(
            f"images of {splits.name} have {splits.channels} channel{'s' * (splits.channels > 1)}, those "
            f"without labels {found.pixels.channels}; they must have as many"
        )
    return found


def _open_unlabelled(data: str | Path, settings: DataSettings) -> ImageSet:
    return open_unlabelled(
        settings.unlabelled or data,
        data,
        classes=settings.unlabelled_classes,
        class_order=settings.class_order,
        split_seed=settings.split_seed,
        val_fraction=settings.val_fraction,
        test_fraction=settings.test_fraction,
        skip_bad_images=settings.skip_bad_images,
    )


def check_channels(splits: Splits, **networks: Network | None) -> None:
    """Refuse a network for gray images where they are in colour (the other way round is no problem)."""
    for role, network in networks.items():
        wanted = network.preprocess.channels if network is not None else splits.channels
        if wanted != splits.channels and splits.channels != 1:
            raise UserError(
                f"the {role} takes images of {wanted} channel{'s' * (wanted > 1)}, those of "
                f"{splits.name} have {splits.channels}; choose another {role}"
            )


def wanted_size(splits: Splits, settings: DataSettings, *networks: Network | None) -> int:
    """Side at which images are held: as asked, as on disk, or the largest that a network wants."""
    sizes = [
        network.preprocess.size for network in networks if network is not None and network.preprocess.size
    ]
    return settings.image_size or splits.image_size or max([FOLDER_SIZE, *sizes])


def load_images(
    splits: Splits,
    size: int,
    settings: DataSettings,
    train_settings: TrainSettings,
    device: torch.device,
    progress: Progress | None = None,
    *,
    cache_folder: Path | None = None,
) -> Prepared:
    """Decode every part once, and put it on the device or, where it is too large, on disk.

    Args:
        splits: the data.
        size: side of the images.
        settings: of the data.
        train_settings: seed and batch size of the training images.
        device: where batches are wanted.
        progress: called with (done, total) for each part.
        cache_folder: for images that are streamed, where the settings name no folder; None: a temporary one.
    """
    notes = [splits.note] if splits.note else []
    if len(splits.test) == 0:
        raise UserError(f"{splits.name} has no test images; what is learned could not be judged")
    augment = splits.augment if settings.augment == "auto" else settings.augment
    parts = [splits.train, splits.val, splits.test]
    with choose_holding(splits.name, parts, size, settings, device, cache_folder) as holding:
        notes += [holding.note] if holding.note else []

        def hold(part: ImageSet, name: str) -> tuple[Source, Tensor]:
            images, labels, skipped = holding.load(part, size, device, progress)
            if skipped:
                notes.append(f"{skipped} {name} image{'s' * (skipped > 1)} could not be read and left out")
            return images, labels

        images, labels = hold(splits.train, "training")
        check_trainable(labels.cpu(), splits.classes, splits.name, "training image")
        mean, std = channel_statistics(in_order(images))
        train = Batches(images, labels, train_settings.batch_of(len(labels)), augment, train_settings.seed)
        val = Batches(*hold(splits.val, "validation"), batch_size=512) if len(splits.val) else None
        test = Batches(*hold(splits.test, "test"), batch_size=512)
    return Prepared(
        name=splits.name,
        classes=splits.classes,
        train=train,
        val=val,
        test=test,
        size=images.shape[-1],
        mean=mean,
        std=std,
        notes=tuple(notes),
    )


def load_unlabelled(
    unlabelled: ImageSet,
    size: int,
    settings: DataSettings,
    device: torch.device,
    progress: Progress | None = None,
    *,
    cache_folder: Path | None = None,
) -> tuple[Source, list[str]]:
    """Images without labels, decoded as :func:`load_images` does with others, and lines for the person.

    In memory they are held twice: by themselves, and behind those with labels.
    """
    held = choose_holding("what has no labels", [unlabelled], size, settings, device, cache_folder, copies=2)
    with held as holding:
        images, _, skipped = holding.load(unlabelled, size, device, progress)
    notes = [holding.note] if holding.note else []
    if skipped:
        notes.append(f"{skipped} image{'s' * (skipped > 1)} without labels could not be read and left out")
    if images.shape[0] == 0:
        raise UserError("none of the images without labels could be read; leave --unlabelled out")
    return images, notes


def place(network: Network, device: torch.device) -> Network:
    """Put a network on the device, with the memory layout that convolutions are fastest in there."""
    network = network.to(device)
    if device.type not in ("cuda", "cpu"):
        return network
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def make_teacher(teacher: str | Path | Network, device: torch.device) -> Network:
    """Load a teacher and freeze it: evaluation mode, no gradients. Its head is never touched."""
    network = teacher if isinstance(teacher, Network) else load(str(teacher))
    return place(network, device).eval().requires_grad_(False)


def starts_fresh(student: str | Path | Network) -> bool:
    """Whether a student has learned nothing yet, so that the data decides how its pixels are normalised."""
    return not isinstance(student, Network) and is_native(str(student))


def starts_trained(student: str | Path | Network) -> bool:
    """Whether a student starts from weights that were trained before; one that is given does where it is in
    evaluation mode, as :func:`refilled.load` and finished runs leave such networks."""
    if isinstance(student, Network):
        return not student.training
    spec = str(student)
    return not is_native(spec) and not (spec.startswith("timm:") and spec.endswith("@random"))


def make_student(
    student: str | Path | Network,
    splits: Splits,
    settings: DataSettings,
    seed: int,
    classes: LabelSpace | None = None,
) -> Network:
    """A student for the data's classes (or others, if given): fresh weights of ours, another library's
    model, or one given."""
    wanted = classes or splits.classes
    if isinstance(student, Network):
        if student.classes != wanted:
            whose = "the data holds" if classes is None else "needed are"
            raise UserError(f"the student knows {student.classes!r}, {whose} {wanted!r}")
        return student.requires_grad_(True)
    torch.manual_seed(seed)
    if not starts_fresh(student):
        return load(str(student), wanted)
    size = settings.image_size or splits.image_size or FOLDER_SIZE
    return load(str(student), wanted, image_size=size, channels=splits.channels)
