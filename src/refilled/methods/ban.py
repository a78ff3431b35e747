"""Born-again networks: for teachers of the same classes only.

Furlanello, Lipton, Tschannen, Itti, Anandkumar: Born-Again Neural Networks, 2018. A network is taught by one
of its own architecture, and then teaches the next generation, which starts anew from fresh weights. A
generation learns the outputs of the one before, without a temperature and without labels; ``label_weight`` 1
adds them (the paper's BAN+L; we know these two from its tables, and did not check them against its text). The
first generation's teacher is the one given, which should be of the student's architecture. In the tables of
Ye, Lu and Zhan that is "Teacher+BAN", the teacher born again; they do not say how often, and we take once.
All generations share the epochs.

Fresh weights follow from the seed. Students of other libraries start again from what they came with.
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from refilled import objectives
from refilled.checks import check_number
from refilled.data import Batch, Batches
from refilled.errors import UserError
from refilled.methods.fresh import fresh
from refilled.methods.same_classes import class_order
from refilled.methods.stage import Method, Stage, embed
from refilled.models import Network
from refilled.models.native import build, is_native


@dataclass(frozen=True)
class BANSettings:
    """The loss is KD from the generation before + label_weight times cross-entropy."""

    generations: int = 1
    """How often the network is born again; the last generation is the result."""
    tau: float = 1.0
    """Temperature of both generations."""
    label_weight: float = 0.0
    """Weight of the cross-entropy on labels."""

    def __post_init__(self) -> None:
        check_number("generations", self.generations, least=1)
        check_number("tau", self.tau, above=0)
        check_number("label_weight", self.label_weight, least=0)


def lifetimes(epochs: int, generations: int) -> list[int]:
    """Epochs of each generation: equal, but for a remainder that goes to the last ones."""
    if epochs < generations:
        raise UserError(f"{generations} generations need at least {generations} epochs, not {epochs}")
    return [epochs * (n + 1) // generations - epochs * n // generations for n in range(generations)]


def newborn(student: Network, train: Batches, generation: int) -> dict[str, Tensor]:
    """The weights that a generation starts from."""
    if not is_native(student.spec):
        return copy.deepcopy(student.state_dict())
    dropout = student.architecture().get("dropout", 0.0)
    return fresh(
        train, lambda: build(student.spec, student.classes, student.preprocess, dropout), number=generation
    ).state_dict()


def stages(
    teacher: Network, student: Network, train: Batches, settings: BANSettings, epochs: int
) -> list[Stage]:
    """One stage for each generation."""

    def generation(number: int, guide: Network, lifetime: int) -> Stage:
        order = class_order(guide, student, train.device)

        def loss(batch: Batch) -> dict[str, Tensor]:
            _, logits = student(batch.images)
            with torch.no_grad():
                wanted = guide.classify(embed(guide, batch))[:, order]
            return {
                "cross_entropy": settings.label_weight * F.cross_entropy(logits.float(), batch.labels),
                "kd": objectives.kd(logits, wanted, tau=settings.tau),
            }

        name, trained = f"generation {number}", list(student.parameters())
        if guide is teacher:
            return Stage(name, lifetime, trained, loss, asks=guide)
        start = newborn(student, train, number)

        def begin() -> None:
            guide.load_state_dict(student.state_dict())
            student.load_state_dict(start)

        return Stage(name, lifetime, trained, loss, asks=guide, beside=guide, begin=begin)

    first, *later = lifetimes(epochs, settings.generations)
    return [
        generation(1, teacher, first),
        *(generation(number, _place_for(student), lifetime) for number, lifetime in enumerate(later, 2)),
    ]


def _place_for(student: Network) -> Network:
    """A frozen network for the weights of the student of a generation."""
    return copy.deepcopy(student).eval().requires_grad_(False)


METHOD = Method(
    "ban",
    "taught by its like, generation by generation; same classes only",
    BANSettings,
    stages,
    same_classes=True,
)
