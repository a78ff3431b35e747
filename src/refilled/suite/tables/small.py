"""Questions in a size for two CPU cores, judged on validation images: what is worth a GPU.

    refilled bench recipes-small --where "recipe=plain distillation"
    refilled bench stage-1-groups --seeds 1

A WRN-16-2 teaches a WRN-16-1; few epochs, eight views of an image.
"""

from typing import Any

from refilled.suite.cell import Cell, TeacherCell, pairs
from refilled.suite.table import Table
from refilled.suite.tables.cifar100 import STANDARD_STEPS, TEACHER_CLASSES
from refilled.suite.tables.recipes import ALONE, RECIPES, VAL_FRACTION
from refilled.suite.tables.rows import fill
from refilled.training import FRESH_LR

_RECIPES = (
    ALONE, "plain distillation", "quarter stage 1 + imitation 5 + fading + head share 0.9",
    "quarter stage 1 + imitation 5 + head share 0.9", "imitation 5 + head share 0.9",
    "quarter stage 1 + imitation 5 + fading + head share 0.9 that stays",
    "imitation 5 + fading + head share 0.9 that stays",
)  # fmt: skip
_TRAINING: dict[str, Any] = {"batch_size": 128, "val_fraction": VAL_FRACTION, "precision": "bfloat16"}
_TEACHER = TeacherCell("wrn-16-2", "cifar100", TEACHER_CLASSES, "cifar-fs", pairs(**_TRAINING, epochs=40))
_COMPARE_NOTHING = ("student", "kd", "refilled-few")
_SCHEDULES: dict[str, dict[str, Any]] = {"cosine": {}, "steps": STANDARD_STEPS}


def _cell(method: str, own: dict[str, Any], classes: str = TEACHER_CLASSES, **other: Any) -> Cell | None:
    """A student of these classes, with settings of the method and others."""
    shots = other.pop("shots", None)
    cell = Cell(
        data="cifar100",
        student="wrn-16-1",
        method=method,
        teacher=_TEACHER,
        classes=classes,
        class_order="cifar-fs",
        shots=shots,
        settings=pairs(views=8, **other),
        on_validation=True,
    )
    return fill(cell, method, **own)


def recipe_for_the_same(recipe: str, schedule: str) -> Cell | None:
    """A recipe for the same 50 classes."""
    method, own = RECIPES[recipe]
    return _cell(method, own, **_TRAINING, epochs=30, **_SCHEDULES[schedule])


SMALL = Table(
    name="recipes-small",
    title="CIFAR-100, 50 classes that both know, teacher WRN-16-2, 30 epochs: recipes on validation images",
    source="not in it",
    axes={"schedule": tuple(_SCHEDULES), "recipe": _RECIPES, "student": ("wrn-16-1",)},
    cell=lambda p: recipe_for_the_same(p["recipe"], p["schedule"]),
    published=lambda p: None,
    measure="val_accuracy",
    alone=lambda p: recipe_for_the_same(ALONE, p["schedule"]),
    note=(
        "The same questions about recipes for the same classes as in [recipes](recipes.md), with less of "
        "everything. *Steps* are those of the "
        "[standard table](cifar100-standard.md): the learning rate falls to a tenth three times, late in a "
        "stage, and not along a cosine."
    ),
)


def _side_by_side(group: int) -> dict[str, Any]:
    """Settings for so many images of a class; one is none."""
    return {"group": group if group > 1 else None}


def grouped(method: str, group: int, batch_size: int, epochs: int) -> Cell | None:
    """A student of the classes that its teacher knows, with so many images of a class side by side where
    comparisons are learnt."""
    if group > 1 and method in _COMPARE_NOTHING:
        return None
    training = _TRAINING | {"batch_size": batch_size, "lr": FRESH_LR * batch_size / 128}
    return _cell(method, _side_by_side(group), **training, epochs=epochs)


GROUPS = Table(
    name="stage-1-groups",
    title="CIFAR-100, 50 classes that both know, WRN-16-2 to WRN-16-1: images of a class side by side",
    source="not in it",
    axes={"batch": (32, 128), "group": (1, 4, 8)},
    cell=lambda p: grouped("refilled-stage1", p["group"], p["batch"], 6),
    published=lambda p: None,
    measure="ncm",
    note=(
        "Six epochs of stage 1 alone, with a learning rate in proportion to the batch. In a shuffled batch "
        "of 32 an image meets 0.6 others of its class, in one of 128 2.5."
    ),
)


def few_grouped(method: str, group: int) -> Cell | None:
    """A student with ten images of each of 50 classes that its teacher does not know, in batches of 16."""
    if group > 1 and method in _COMPARE_NOTHING:
        return None
    training = {name: _TRAINING[name] for name in ("val_fraction", "precision")}
    return _cell(method, _side_by_side(group), "50:100", shots=10, **training, epochs=120)


FEW_GROUPS = Table(
    name="groups-few",
    title="CIFAR-100, ten images of each of 50 classes, WRN-16-2 of others to WRN-16-1: some side by side",
    source="not in it",
    axes={"method": ("student", "refilled-emb", "refilled", "refilled-few"), "group": (1, 4)},
    cell=lambda p: few_grouped(p["method"], p["group"]),
    published=lambda p: None,
    measure="val_accuracy",
    alone=lambda p: few_grouped("student", 1),
    note=(
        "120 epochs in batches of 16. In a shuffled batch an image meets 0.3 others of its class; *group* is "
        "how many of a class stand side by side."
    ),
)


SAME_GROUPS = Table(
    name="groups-same",
    title="CIFAR-100, 50 classes that both know, WRN-16-2 to WRN-16-1, batches of 32: some side by side",
    source="not in it",
    axes={"method": ("student", "kd", "refilled"), "group": (1, 4)},
    cell=lambda p: grouped(p["method"], p["group"], 32, 12),
    published=lambda p: None,
    measure="val_accuracy",
    alone=lambda p: grouped("student", 1, 32, 12),
    note=(
        "12 epochs. In a shuffled batch an image meets 0.6 others of its class; *group* is how many of a "
        "class stand side by side."
    ),
)
TABLES = (SMALL, GROUPS, FEW_GROUPS, SAME_GROUPS)
