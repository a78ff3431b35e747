"""Several trainings of one kind: each step by itself, or all their steps together.

    python benchmarks/together.py                                 # needs a GPU and Triton
    python benchmarks/together.py --student wrn-16-2 --batch-size 64 --numbers 1 8 --ways own together

Whole compiled trainings as ``refilled bench --compile`` runs them, with made-up images: augmentation,
network, cross-entropy, update. *library*: its convolutions; *convolutions*: ours
(refilled.models.convolution); *own*: normalisation along with them (refilled.models.wide_fused); *together*:
all students through the same kernels (refilled.training.teams).
"""

import argparse
import statistics
from collections.abc import Iterator
from unittest import mock

import torch

from command import run
from convolutions import never
from our_loop import make_stage
from pace import Speeds, Window
from refilled.data import Batches
from refilled.labels import LabelSpace
from refilled.models import convolution, load, wide_fits
from refilled.runs.prepare import place
from refilled.training import Teams, TrainSettings, make_deterministic, take_turns, training
from refilled.training.teams import LARGEST
from timing import say, spread
from world import CLASSES, LR, SIDE, make_images

WAYS = ("library", "convolutions", "own", "together")


class Race:
    """Trainings that are made anew for each way and number.

    Args:
        student: what is trained.
        size: images of a step.
        images: of an epoch.
        seconds: that are measured at least.
    """

    def __init__(self, student: str, size: int, images: int, seconds: float):
        self.student, self.size, self.seconds = student, size, seconds
        self.classes = LabelSpace(str(label) for label in range(CLASSES))
        self.images, self.labels = (made.cuda() for made in make_images(images))

    def measure(self, way: str, number: int, largest: int) -> list[float]:
        """Images per second of all together, by each training's epochs."""
        window = Window(number, self.seconds)
        speeds = [Speeds(window) for _ in range(number)]
        teams = Teams(largest=largest) if way == "together" else None
        take_turns((self._one(window, seen, teams) for seen in speeds), max(2, number))
        if teams is not None and teams.problem is not None:
            raise RuntimeError(teams.problem)
        return [number * rate for seen in speeds for rate in seen.found]

    def _one(self, window: Window, seen: Speeds, teams: Teams | None) -> Iterator[None]:
        batches = Batches(self.images, self.labels, self.size, "crop-flip")
        student = place(load(self.student, self.classes, image_size=SIDE), torch.device("cuda"))
        stage = make_stage("alone", student, student, batches, 10**4)
        settings = TrainSettings(batch_size=self.size, lr=LR, compile=True)
        steps = training([stage], student, batches, settings, reporter=seen, teams=teams)
        began = False
        for _ in steps:
            if not began and seen.last > float("-inf"):
                began = True  # its first epoch, with compiling and waiting for the others, is over
                window.join()
            yield
            if window.is_over:
                steps.close()
                return


def main() -> None:
    """Measure, a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--student", default="wrn-16-2")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--images", type=int, default=12_800, help="of an epoch")
    parser.add_argument("--numbers", type=int, nargs="+", default=[1, 8], help="of trainings")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--largest", type=int, default=LARGEST, help="number of trainings in a team")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each")
    asked = parser.parse_args()
    if convolution.kernels is None or not torch.cuda.is_available():
        parser.error("this needs a GPU and Triton")
    make_deterministic(False)
    race = Race(asked.student, asked.batch_size, asked.images, asked.seconds)
    for way in asked.ways:
        torch._dynamo.reset()
        known = never if way == "library" else convolution._is_known
        with (
            mock.patch.object(convolution, "_is_known", known),
            mock.patch.object(wide_fits, "SHOWN_FASTER", way in ("own", "together")),
        ):
            for number in asked.numbers:
                rates = race.measure(way, number, asked.largest)
                say(
                    f"{asked.student}, {asked.batch_size} images a step, {way}, {number} at once: "
                    f"{statistics.median(rates):,.0f} ± {spread(rates):,.0f} images/s in all"
                )


if __name__ == "__main__":
    run(main)
