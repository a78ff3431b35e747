"""miniImageNet: few-shot and middle-shot tasks of unseen classes, with a ConvNet or a ResNet as the teacher.

    refilled bench miniimagenet-fewshot --shots 1 5 10 30

Networks are trained on the 64 seen classes; tasks are of the 20 test classes. What methods are tried with,
and which of it was chosen on tasks of the 16 validation classes, is in ``fewshot_settings``.
"""

from typing import Any

from refilled.errors import UserError
from refilled.fewshot import METHODS, get_method
from refilled.suite.cell import TeacherCell, pairs
from refilled.suite.judging import OverTasks
from refilled.suite.table import Point, Table
from refilled.suite.tables import published
from refilled.suite.tables.fewshot_settings import chosen_settings
from refilled.suite.tables.published import SHOTS, lookup
from refilled.suite.task_cell import TaskCell

IMAGE_SIZE = 64
"""The paper's images have 84 pixels: gains are comparable with its, absolute numbers are not."""
SEEN, VALIDATION, UNSEEN = "0:64", "64:80", "80:100"
"""Classes of miniImageNet's train, val and test files."""
STUDENT = "convnet-4"
EPOCHS = {STUDENT: 100, "resnet-12": 30}
"""Of the networks on the seen classes; an image costs a ResNet-12 37 times as many operations."""
TEACHERS = tuple(EPOCHS)

ALONE = {"refilled": "fine-tune", "refilled-scratch": "student"}
"""The same student without a teacher."""


def seen_network(network: str) -> TeacherCell:
    """A network of the seen classes: the paper's SGD with crops and flips in batches of 128."""
    if network not in EPOCHS:
        raise UserError(f"{network} is no network of this table; it has {', '.join(EPOCHS)}")
    settings = pairs(epochs=EPOCHS[network], batch_size=128, image_size=IMAGE_SIZE, val_fraction=0.0)
    return TeacherCell(network, "miniimagenet", SEEN, settings=settings)


def asked_teacher(method: str, teacher: str) -> str | None:
    """The teacher, where the method asks any."""
    return teacher if get_method(method).asks_teacher else None


def cell(method: str, teacher: str, shots: int) -> TaskCell:
    """A method for a number of shots, with its chosen settings."""
    chosen = chosen_settings(method, asked_teacher(method, teacher), shots)
    return cell_with(method, teacher, shots, chosen)


def cell_with(method: str, teacher: str, shots: int, settings: dict[str, Any]) -> TaskCell:
    """The same with other settings; a method that asks no teacher is the same cell for all of them."""
    asked = asked_teacher(method, teacher)
    return TaskCell(
        data="miniimagenet",
        classes=UNSEEN,
        val_classes=VALIDATION,
        network=seen_network(STUDENT),
        method=method,
        teacher=seen_network(asked) if asked else None,
        shots=shots,
        settings=pairs(**settings),
    )


def alone(method: str, teacher: str, shots: int) -> TaskCell | None:
    """The same student without a teacher, with settings of its own but as many steps."""
    if method not in ALONE:
        return None
    steps = cell(method, teacher, shots).resolved()["steps"]
    return cell(ALONE[method], teacher, shots).with_settings(steps=steps)


def _published(point: Point) -> float | None:
    asked = asked_teacher(point["method"], point["teacher"])
    row = f"{point['method']} {asked}" if asked else point["method"]
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
        "`student` from fresh weights. The former keep its statistics, and start as the nearest class mean. "
        "Classifiers on embeddings use that ConvNet-4; ProtoNet, FEAT (2,000 episodes) and MAML (2,000 "
        "iterations, first order) start from it, Neg-Cosine trains its own. MAML alone sees the queries of a "
        "task together, as in its paper: they are normalised by their own statistics. Settings were chosen "
        "on validation tasks, see [fewshot-choices](fewshot-choices.md)."
    ),
)
