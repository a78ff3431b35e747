"""Fine-tuning: the teacher itself, with a new head, is trained on the student's labels.

What one does without distillation where teacher and student may be the same network. The paper's baseline
"Teacher's EMB: FT" has a learning rate of 1e-4 and 50 epochs; those are settings of the training.
"""

from dataclasses import replace
from functools import partial

from refilled.data import Batches
from refilled.methods.alone import AloneSettings, cross_entropy_stage
from refilled.methods.stage import Method, Stage
from refilled.methods.taking_over import check_same_architecture, take_over, whole
from refilled.models import Network


def stages(
    teacher: Network, student: Network, train: Batches, settings: AloneSettings, epochs: int
) -> list[Stage]:
    """One stage of cross-entropy, from the teacher's weights and with its way to prepare pixels."""
    whole(student).normalise_by(teacher.preprocess.mean, teacher.preprocess.std)
    return [
        replace(
            cross_entropy_stage(student, epochs, settings.mixtures),
            begin=partial(take_over, teacher, student),
        )
    ]


METHOD = Method(
    "fine-tune",
    "the teacher itself with a new head, on the student's labels",
    AloneSettings,
    stages,
    fits=partial(check_same_architecture, "fine-tune"),
    takes_over=True,
    keeps=True,
)
