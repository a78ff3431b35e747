"""Few-shot tasks on an embedding that had a teacher while it learnt the seen classes.

    refilled bench fewshot-embedding --tasks 2000

The paper's students meet their teacher in the task, where there are five to 150 images. Here the ConvNet-4
meets it before, on the 64 seen classes, and the tasks' classifiers are those of the baselines.
"""

from dataclasses import replace

from refilled.suite.cell import TeacherCell
from refilled.suite.judging import OverTasks
from refilled.suite.table import Point, Table
from refilled.suite.tables.fewshot import STUDENT, cell, seen_network
from refilled.suite.tables.published import SHOTS
from refilled.suite.task_cell import TaskCell

ALONE, TEACHER = "student", "resnet-12"
NETWORKS = (ALONE, "refilled")
"""How the ConvNet-4 learns the seen classes: methods by name."""
CLASSIFIERS = ("ncm", "lr", "simpleshot")


def embedding(method: str) -> TeacherCell:
    """The ConvNet-4 of the seen classes, trained by a method for the same number of epochs."""
    network = seen_network(STUDENT)
    return network if method == ALONE else replace(network, method=method, taught_by=seen_network(TEACHER))


def on_embedding(point: Point, network: str) -> TaskCell:
    """A classifier on the embedding of that network, with the settings of miniimagenet-fewshot."""
    found = cell(point["classifier"], STUDENT, point["shots"])
    return replace(found, network=embedding(network))


FEW_SHOT_EMBEDDING = Table(
    name="fewshot-embedding",
    title="miniImageNet, 5-way tasks of unseen classes: classifiers on a ConvNet-4 that had a teacher before",
    source="not in it",
    axes={"classifier": CLASSIFIERS, "network": NETWORKS, "shots": SHOTS},
    cell=lambda p: on_embedding(p, p["network"]),
    published=lambda p: None,
    alone=lambda p: on_embedding(p, ALONE) if p["network"] != ALONE else None,
    judged=OverTasks,
    with_alone=True,
    note=(
        "The ConvNet-4 learns the 64 seen classes alone (`student`), or with ResNet-12 as its teacher, for "
        "the same number of epochs. In the tasks nobody is asked: their classifiers use the embedding alone, "
        "with the settings of [miniimagenet-fewshot](miniimagenet-fewshot.md)."
    ),
)
