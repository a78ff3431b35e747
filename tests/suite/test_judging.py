"""Numbers, doubts and gains, over seeds and over tasks."""

import pytest

from refilled.errors import UserError
from refilled.evaluation import half_interval
from refilled.suite import OverSeeds, OverTasks, get_table


def over_seed(seed: int, accuracy: float) -> dict:
    return {"cell": {"seed": seed}, "test_accuracy": accuracy}


def over_tasks(right: list[int]) -> dict:
    shares = [count / 20 for count in right]
    return {
        "cell": {"ways": 5, "queries": 4}, "right": right, "tasks": len(right),
        "test_accuracy": sum(shares) / len(shares), "half_interval": half_interval(shares),
    }  # fmt: skip


def test_seeds():
    judge = OverSeeds(3)
    records = [over_seed(0, 0.70), over_seed(1, 0.72)]
    assert judge.number(records, "test_accuracy") == "71.00 ± 1.41 [2]"
    assert judge.number(records[:1], "test_accuracy") == "70.00 [1]"
    assert judge.gain(records, [over_seed(1, 0.71), over_seed(2, 0.1)], "test_accuracy") == "+1.00"
    assert judge.gain(records, [over_seed(2, 0.1)], "test_accuracy") is None


def test_tasks_are_paired():
    judge = OverTasks(4)
    ours, alone = over_tasks([12, 16, 7, 20]), over_tasks([11, 14, 6, 18])
    assert judge.number([ours], "test_accuracy") == "68.75 ± 44.23"
    # Tasks differ by much, methods by little: only the differences say so.
    assert judge.gain([ours], [alone], "test_accuracy") == "+7.50 ± 4.59"
    assert judge.gain([ours], [], "test_accuracy") is None


def test_fewer_tasks_are_said_and_only_common_ones_are_compared():
    judge = OverTasks(10_000)
    assert judge.number([over_tasks([12, 16])], "test_accuracy").endswith(" [2]")
    assert judge.gain([over_tasks([12, 16, 20])], [over_tasks([11, 15])], "test_accuracy") == "+5.00 ± 0.00"


def test_tables_are_judged_in_their_own_way():
    trainings, tasks = get_table("cifar100-gkd"), get_table("miniimagenet-fewshot")
    assert trainings.judge() == OverSeeds(3)
    assert trainings.judge(seeds=5) == OverSeeds(5)
    assert tasks.judge() == OverTasks(10_000)
    assert tasks.judge(tasks=7, tiny=True) == OverTasks(7)
    assert tasks.judge(trial=True) == OverTasks(500)
    assert (tasks.judge().options(), tasks.judge(tasks=7).options()) == ("", " --tasks 7")
    assert (trainings.judge().options(), trainings.judge(seeds=5).options()) == ("", " --seeds 5")
    with pytest.raises(
        UserError, match="--tasks is for tables of few-shot tasks; cifar100-gkd is judged over"
    ):
        trainings.judge(tasks=100)
    with pytest.raises(UserError, match="--seeds is for tables of trainings; miniimagenet-fewshot is judged"):
        tasks.judge(seeds=3)
    with pytest.raises(UserError, match="--tasks must be at least 1, not 0"):
        tasks.judge(tasks=0)
    with pytest.raises(UserError, match="--seeds must be at least 1, not 0"):
        trainings.judge(seeds=0)
