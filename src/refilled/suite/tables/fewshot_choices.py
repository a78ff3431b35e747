"""What few-shot methods are tried with, judged on tasks of the validation classes.

    refilled bench fewshot-choices --tasks 200

Tasks of the test classes are never drawn here. The best of each method becomes its settings in
miniimagenet-fewshot; for 10 shots, which are not tried, what is best with 5.
"""

import itertools

from refilled.suite.judging import OverTasks
from refilled.suite.ledger import Ledger
from refilled.suite.table import Point, Table
from refilled.suite.tables.fewshot import TEACHERS, asked_teacher, cell_with
from refilled.suite.tables.fewshot_settings import CANDIDATES, CHOICE_SHOTS, SCHEDULES
from refilled.suite.task_cell import TaskCell

NAMES = tuple(dict.fromkeys(name for own in CANDIDATES.values() for name in own))


def candidate(point: Point) -> TaskCell | None:
    """A method with one of its candidates; None where that is another method's."""
    method, name = point["method"], point["candidate"]
    if name not in CANDIDATES[method]:
        return None
    settings = SCHEDULES.get(method, {}) | CANDIDATES[method][name]
    return cell_with(method, point["teacher"], point["shots"], settings).on_validation()


def best_of(ledger: Ledger, tasks: int) -> dict[tuple[str, str | None, int], str]:
    """The best candidate by (method, its teacher or None, shots), where the ledger has all of them.

    Args:
        ledger: what was measured.
        tasks: that each must have.
    """
    found = {}
    for teacher, method, shots in itertools.product(TEACHERS, CANDIDATES, CHOICE_SHOTS):
        at = {"teacher": teacher, "method": method, "shots": shots}
        values = {}
        for name in CANDIDATES[method]:
            cell = candidate(at | {"candidate": name})
            assert cell is not None, "it is one of this method's"
            record = ledger.of(cell.with_tasks(tasks))
            if record is not None and record["tasks"] == tasks:
                values[name] = record["test_accuracy"]
        if len(values) == len(CANDIDATES[method]):
            found[method, asked_teacher(method, teacher), shots] = max(values, key=values.__getitem__)
    return found


FEW_SHOT_CHOICES = Table(
    name="fewshot-choices",
    title="miniImageNet as in miniimagenet-fewshot, but tasks of the validation classes: candidates",
    source="not in it",
    axes={"teacher": TEACHERS, "method": tuple(CANDIDATES), "candidate": NAMES, "shots": CHOICE_SHOTS},
    cell=candidate,
    published=lambda p: None,
    judged=OverTasks,
    note=(
        "These numbers are for choosing: the best of each method is what miniimagenet-fewshot runs, with the "
        "best at 5 shots for 10. What the names mean is in "
        "[fewshot_settings.py](../src/refilled/suite/tables/fewshot_settings.py)."
    ),
)
