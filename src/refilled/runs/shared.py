"""What the runs of one comparison have in common, so that it is read, placed and asked only once."""

from dataclasses import replace
from pathlib import Path

import torch

from refilled.data import Batches, FilePixels, ImageSet, Splits
from refilled.data.source import Source, common_images, join
from refilled.models import Network
from refilled.runs.prepare import (
    Prepared,
    load_images,
    load_unlabelled,
    make_teacher,
    read_splits,
    read_unlabelled,
)
from refilled.runs.settings import DataSettings
from refilled.training import Beginnings, Reporter, Teachers, TrainSettings


class Shared:
    """Data, images, teacher and its answers, for runs that differ in their seed or method.

    All runs are given the same data, teacher and device, and settings that differ in nothing else.

    Args:
        trainings: how many are run at the same time.
        folder: run folder of the comparison, for what they all keep; None: each has its own.
        beginnings: first stages that several of them have in common, kept for those that follow; None: each
            trains its own.
    """

    def __init__(self, trainings: int = 1, folder: Path | None = None, beginnings: Beginnings | None = None):
        self.trainings, self.folder, self.beginnings = trainings, folder, beginnings
        self.notes: list[str] = []
        """Lines for the first run that begins."""
        self._splits: tuple[tuple[int, int] | None, Splits] | None = None
        self._images: tuple[Splits, int, Prepared] | None = None
        self._unlabelled: tuple[tuple[str | None, str | None], ImageSet] | None = None
        self._decoded: tuple[ImageSet, int, Source] | None = None
        self._joined: tuple[Source, Source, Source] | None = None
        self._teacher: Network | None = None
        self._teachers: Teachers | None = None
        self._same_images = True

    def splits(self, data: str | Path | Splits, settings: DataSettings, seed: int) -> Splits:
        """The data, opened; anew for another seed where it chooses the training images."""
        self._same_images = settings.shots is None
        chosen_by = None if settings.shots is None else (settings.shots, seed)
        if self._splits is None or self._splits[0] != chosen_by:
            self._splits = (chosen_by, read_splits(data, settings, seed))
        return self._splits[1]

    def unlabelled(
        self, data: str | Path | Splits, settings: DataSettings, splits: Splits
    ) -> ImageSet | None:
        """The images without labels that are wanted beside the data, or None."""
        wanted = (settings.unlabelled, settings.unlabelled_classes)
        if self._unlabelled is not None and self._unlabelled[0] == wanted and not isinstance(data, Splits):
            return self._unlabelled[1]
        found = read_unlabelled(data, settings, splits)
        if found is not None:
            self._unlabelled = (wanted, found)
        return found

    def teacher(self, teacher: str | Path | Network, device: torch.device) -> Network:
        """The teacher, frozen, on the device."""
        if self._teacher is None:
            self._teacher = make_teacher(teacher, device)
            self.notes += self._teacher.notes
        return self._teacher

    def images(
        self,
        splits: Splits,
        size: int,
        data_settings: DataSettings,
        settings: TrainSettings,
        device: torch.device,
        reporter: Reporter,
        folder: Path | None,
        unlabelled: ImageSet | None = None,
    ) -> Prepared:
        """The images on the device, dealt out as the seed has it; beside them those without labels."""
        keeper = self.folder or folder
        cache = keeper / "cache" if keeper is not None else None
        if self._images is None or self._images[:2] != (splits, size):
            loaded = load_images(
                splits, size, _held_as_asked(data_settings, splits.train, unlabelled), settings, device,
                reporter.loading, cache_folder=cache,
            )  # fmt: skip
            self._images = (splits, size, loaded)
            notes = loaded.notes
        else:
            notes = ()
        known = self._images[2]
        source, batch_size, beside = known.train.source, settings.batch_of(len(known.train.labels)), 0
        if unlabelled is not None:
            if self._decoded is None or self._decoded[0] is not unlabelled or self._decoded[1] != size:
                images, more = load_unlabelled(
                    unlabelled, size, _held_as_asked(data_settings, unlabelled, splits.train), device,
                    reporter.loading, cache_folder=cache,
                )  # fmt: skip
                self._decoded = (unlabelled, size, images)
                notes = (*notes, *more, *_seen_before(known, images))
            source, beside = self._join(source, self._decoded[2]), data_settings.unlabelled_each * batch_size
        train = Batches(
            source,
            known.train.labels,
            batch_size,
            known.train.augment,
            settings.seed,
            data_settings.views,
            unlabelled=beside,
        )
        return replace(known, train=train, notes=notes)

    def _join(self, own: Source, others: Source) -> Source:
        """Both as one: always the same for the same two, so that what was asked about it is found again."""
        if self._joined is None or self._joined[0] is not own or self._joined[1] is not others:
            self._joined = (own, others, join(own, others))
        return self._joined[2]

    def teachers(self, autocast_dtype: torch.dtype | None, compile: bool) -> Teachers:
        """Ways to ask the teacher."""
        if self._teachers is None:
            self._teachers = Teachers(self.trainings, autocast_dtype, compile, self._same_images)
        return self._teachers


def _held_as_asked(settings: DataSettings, part: ImageSet, other: ImageSet | None) -> DataSettings:
    """Streaming is for files: a part that is in memory already stays there if the other can be streamed."""
    files = [isinstance(images.pixels, FilePixels) for images in (part, other) if images is not None]
    return replace(settings, pixels="auto") if any(files) and not files[0] else settings


def _seen_before(known: Prepared, unlabelled: Source) -> list[str]:
    """Lines for the person where images without labels are those that the student will be judged on."""
    lines = []
    for name, part in (("test", known.test), ("validation", known.val)):
        count = common_images(part.source, unlabelled) if part is not None else 0
        if count:
            are = f"is a {name} image" if count == 1 else f"are {name} images"
            lines.append(
                f"{count} of the images without labels {are} too: take them out, or the accuracy will flatter"
            )
    return lines
