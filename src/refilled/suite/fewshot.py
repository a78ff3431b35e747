"""miniImageNet: few-shot and middle-shot tasks of unseen classes, with a ConvNet or a ResNet as the teacher.

    refilled bench miniimagenet-fewshot --shots 1 5 10 30

Networks are trained on the 64 seen classes; tasks are of the 20 test classes. How settings are chosen:

1. ``refilled bench miniimagenet-fewshot --method refilled --shots 5 --tune 40`` searches on tasks of the 16
   validation classes and writes results/tuned/miniimagenet-fewshot-TEACHER-METHOD-SHOTS.json.
2. Its ``settings`` are put into ``CHOSEN`` below. The table uses those and no others, so that what it runs is
   here to be read; what has no entry has the defaults of the method and of ``SCHEDULES``.
"""

from typing import Any

from refilled.errors import UserError
from refilled.fewshot import METHODS, get_method
from refilled.suite import published
from refilled.suite.cell import TeacherCell, pairs
from refilled.suite.judging import OverTasks
from refilled.suite.published import SHOTS, lookup
from refilled.suite.table import Point, Table
from refilled.suite.task_cell import TaskCell

IMAGE_SIZE = 64
"""The paper's images have 84 pixels: gains are comparable with its, absolute numbers are not."""
SEEN, VALIDATION, UNSEEN = "0:64", "64:80", "80:100"
"""Classes of miniImageNet's train, val and test files."""
STUDENT = "convnet-4"
EPOCHS = {STUDENT: 100, "resnet-12": 60}
"""Of the networks on the seen classes; an image costs a ResNet-12 37 times as many operations."""
TEACHERS = tuple(EPOCHS)

_META = {"episodes": 2_000}
SCHEDULES: dict[str, dict[str, Any]] = {
    "protonet": _META, "feat": _META, "maml": {"iterations": 2_000}
}  # fmt: skip
"""Much shorter than their papers', to fit into minutes: ProtoNet and FEAT start from a trained network, MAML
has a thirtieth of its 60,000 iterations. The table says so."""
CHOSEN: dict[tuple[str, str | None, int], dict[str, Any]] = {}
"""Settings by (method, its teacher or None, shots), as found on validation tasks."""
ALONE = {"refilled": "fine-tune", "refilled-scratch": "student"}
"""The same student without a teacher."""


def seen_network(network: str) -> TeacherCell:
    """A network of the seen classes: the paper's SGD with crops and flips in batches of 128."""
    if network not in EPOCHS:
        raise UserError(f"{network} is no network of this table; it has {', '.join(EPOCHS)}")
    settings = pairs(epochs=EPOCHS[network], batch_size=128, image_size=IMAGE_SIZE, val_fraction=0.0)
    return TeacherCell(network, "miniimagenet", SEEN, settings=settings)


def cell(method: str, teacher: str, shots: int) -> TaskCell:
    """A method for a number of shots; one that asks no teacher is the same cell for all of them."""
    asked = teacher if get_method(method).asks_teacher else None
    return TaskCell(
        data="miniimagenet",
        classes=UNSEEN,
        val_classes=VALIDATION,
        network=seen_network(STUDENT),
        method=method,
        teacher=seen_network(asked) if asked else None,
        shots=shots,
        settings=pairs(**(SCHEDULES.get(method, {}) | CHOSEN.get((method, asked, shots), {}))),
    )


def alone(method: str, teacher: str, shots: int) -> TaskCell | None:
    """The same student without a teacher, with settings of its own but as many steps."""
    if method not in ALONE:
        return None
    steps = cell(method, teacher, shots).resolved()["steps"]
    return cell(ALONE[method], teacher, shots).with_settings(steps=steps)


def _published(point: Point) -> float | None:
    asks = get_method(point["method"]).asks_teacher
    row = f"{point['method']} {point['teacher']}" if asks else point["method"]
    return lookup(published.FEW_SHOT, row, SHOTS, point["shots"])


FEW_SHOT = Table(
    name="miniimagenet-fewshot",
    title="miniImageNet, 5-way tasks of unseen classes; the student is a ConvNet-4",
    source="Table of few-shot and middle-shot learning (its images have 84 pixels, ours 64)",
    axes={"teacher": TEACHERS, "method": METHODS, "shots": SHOTS},
    cell=lambda p: cell(p["method"], p["teacher"], p["shots"]),
    published=_published,
    alone=lambda p: alone(p["method"], p["teacher"], p["shots"]),
    judged=OverTasks,
    with_alone=True,
    note=(
        "Only `refilled` and `refilled-scratch` ask the teacher; the other rows are the same for both. "
        "`refilled` and `fine-tune` start from the ConvNet-4 of the seen classes, `refilled-scratch` and "
        "`student` from fresh weights. Classifiers on embeddings use that ConvNet-4; ProtoNet and FEAT start "
        "from it (2,000 episodes), MAML (first order, queries not seen together, 2,000 iterations instead of "
        "its paper's 60,000) and Neg-Cosine train their own."
    ),
)
