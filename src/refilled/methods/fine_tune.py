"""Fine-tuning: the teacher itself, with a new head, is trained on the student's labels.

What one does without distillation where teacher and student may be the same network. The paper's baseline
"Teacher's EMB: FT" has a learning rate of 1e-4 and 50 epochs; those are settings of the training.
"""

import torch

from refilled.data import Batches
from refilled.errors import UserError
from refilled.methods.alone import AloneSettings, cross_entropy_stage
from refilled.methods.stage import Method, Stage
from refilled.models import Network


def check(teacher: Network, student: Network) -> None:
    """Refuse a student that cannot take over the teacher's weights."""
    ours, theirs = _backbone(student), _backbone(teacher)
    if {n: t.shape for n, t in ours.items()} != {n: t.shape for n, t in theirs.items()}:
        raise UserError(
            f"fine-tune needs a student of the teacher's architecture: that is {teacher.spec}, not "
            f"{student.spec}. Use --method refilled, which works for any two networks"
        )


def _backbone(network: Network) -> dict[str, torch.Tensor]:
    of_head = {id(tensor) for tensor in network.head.state_dict(keep_vars=True).values()}
    return {name: t for name, t in network.state_dict(keep_vars=True).items() if id(t) not in of_head}


def stages(
    teacher: Network, student: Network, train: Batches, settings: AloneSettings, epochs: int
) -> list[Stage]:
    """One stage of cross-entropy, from the teacher's weights and with its way to prepare pixels."""

    @torch.no_grad()
    def begin() -> None:
        for ours, theirs in zip(_backbone(student).values(), _backbone(teacher).values()):
            ours.copy_(theirs)

    student.normalise_by(teacher.preprocess.mean, teacher.preprocess.std)
    alone = cross_entropy_stage(student, epochs)
    return [Stage(alone.name, epochs, alone.parameters, alone.loss, begin=begin)]


METHOD = Method(
    "fine-tune",
    "the teacher itself with a new head, on the student's labels",
    AloneSettings,
    stages,
    check=check,
)
