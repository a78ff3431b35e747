"""Images, teacher, and the loops of all ways: what ``training.py`` makes once."""

import argparse
import copy
import gc
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import roofline
import user_loop
from our_loop import OurLoop, make_stage
from refilled.data import Batches
from refilled.labels import LabelSpace
from refilled.models import Network, load
from refilled.runs.prepare import make_teacher, place
from refilled.training import Reporter, Teachers, TrainSettings, make_deterministic, pick_device
from timing import say

SIDE, CLASSES, LR = 32, 50, 0.01
EPOCHS = 200  # of the run that is imagined around the measured steps: they decide what pays for itself
IN_STEP = "fast, teacher in the step"


class Notes(Reporter):
    """Says what the engine says, among the benchmark's own lines."""

    def line(self, text: str) -> None:
        """Print one line."""
        say(f"  ({text})")


def make_images(count: int) -> tuple[Tensor, Tensor]:
    """Noise around a colour for each class, uint8 [N, 3, side, side], and labels int64 [N]."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % CLASSES
    colours = torch.randint(0, 128, (CLASSES, 3, 1, 1), generator=generator)
    noise = torch.randint(0, 128, (count, 3, SIDE, SIDE), generator=generator)
    return (colours[labels] + noise).to(torch.uint8), labels


@torch.no_grad()
def settle(network: Network, images: Tensor) -> None:
    """Give the batch norms of fresh weights the statistics of some images, as training would have."""
    norms = [layer for layer in network.modules() if isinstance(layer, nn.BatchNorm2d)]
    usual = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    network.train()(images.float() / 255)
    for norm, momentum in zip(norms, usual):
        norm.momentum = momentum


class World:
    """Images, teacher and all else that is made once."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.device = pick_device(options.device)
        make_deterministic(False)  # cudnn.benchmark for all ways
        self.classes = LabelSpace(str(label) for label in range(CLASSES))
        images, labels = make_images(options.images)
        self.images, self.labels = images.to(self.device), labels.to(self.device)
        views = options.views or None
        self.batches = Batches(self.images, self.labels, options.batch_size, "crop-flip", views=views)
        self.steps = min(options.steps, len(self.batches))
        self.batch_size = self.batches.batch_size
        teacher = self.network(options.teacher, 0)
        settle(teacher, images[:256])
        self.teacher = make_teacher(teacher, self.device)
        # The user's has the same weights in the usual layout of memory.
        self.users_teacher = copy.deepcopy(self.teacher).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        self.autocast_dtype = TrainSettings(precision=options.precision).autocast_dtype(self.device)
        self.teachers = Teachers(autocast_dtype=self.autocast_dtype)
        self.looked_up = False
        self.rates = roofline.Rates(0.0, 0.0)
        self.measure_rates()

    def measure_rates(self) -> None:
        """What the device does at its best: asked again now and then, for other work may disturb it."""
        self.rates = self.rates.best(roofline.measure_rates(self.device, self.options.tiny))
        self.free()

    def free(self) -> None:
        """Give back what the last student held, compiled code included."""
        if "compiled" in self.options.ways:  # the compiler takes seconds to import
            torch.compiler.reset()
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def network(self, spec: str, seed: int) -> Network:
        """Fresh weights, not on the device yet."""
        torch.manual_seed(seed)
        return load(spec, self.classes, image_size=SIDE)

    def our_loop(self, spec: str, stage: str, way: str, seed: int = 0) -> OurLoop:
        """Our training of one student."""
        settings = TrainSettings(
            batch_size=self.batch_size,
            step="plain" if way == "plain" else "auto",
            compile=way == "compiled",
            precision=self.options.precision,
            seed=seed,
        )
        student = place(self.network(spec, seed), self.device)
        made = make_stage(stage, self.teacher, student, self.batches, EPOCHS)
        asking = 1 if way == IN_STEP else EPOCHS
        teachers = Teachers(autocast_dtype=self.autocast_dtype) if way == IN_STEP else self.teachers
        return OurLoop(
            student, made, self.batches, settings, teachers, asking, self.steps, LR, Notes()
        )  # fmt: skip

    # What only the user's loop needs.

    def pictures(self, augment: bool, most: int | None = None) -> user_loop.Pictures:
        """The images as PIL has them."""
        how = self.teacher.preprocess
        return user_loop.Pictures(self.images[:most], self.labels[:most], how.mean, how.std, augment)

    def loader(self, augment: bool, batch_size: int, most: int | None = None) -> DataLoader:
        """A loader of augmented pictures for training, or of all as they are."""
        steps = self.steps if augment else None
        pictures = self.pictures(augment, most)
        return user_loop.make_loader(pictures, batch_size, self.options.workers, self.device, steps)

    @cached_property
    def training_loader(self) -> DataLoader:
        """One for all students and stages; its workers live on."""
        return self.loader(True, self.batch_size)

    @cached_property
    def centres(self) -> Tensor:
        """Class centres in the teacher's embedding."""
        loader = self.loader(False, self.batch_size)
        return user_loop.class_centres(self.users_teacher, loader, CLASSES, self.device)

    def user_loop(self, spec: str, stage: str) -> user_loop.UserLoop:
        """The user's training of one student."""
        student = self.network(spec, 0).to(self.device)
        parameters = list(student.parameters())
        if stage == "alone":
            loss = user_loop.alone_loss(student)
        elif stage == "1":
            loss = user_loop.embedding_loss(student, self.users_teacher)
            parameters = student.backbone_parameters()
        else:
            loss = user_loop.classifier_loss(student, self.users_teacher, self.centres)
        return user_loop.UserLoop(student, parameters, loss, self.training_loader, LR)
