"""Running cells of tasks: in parts, on with more, and refused before anything is trained."""

from dataclasses import replace

import pytest

from refilled.cli import BenchCommand
from refilled.errors import UserError
from refilled.suite import Bench, Ledger, OverTasks, Places, cells_of, get_table, render, tasks, tune_table
from refilled.suite.choices.task_trials import TaskTrials
from refilled.training import Reporter

TABLE = get_table("miniimagenet-fewshot")
FEW = {"teacher": ("resnet-12",), "method": ("refilled",), "shots": (5,)}


class Told(Reporter):
    def __init__(self):
        self.seen = []

    def loading(self, done, total, what="reading images"):
        self.seen.append((what, done, total))


def bench(work, said=None, **options) -> Bench:
    say = (said if said is not None else []).append
    return Bench(Ledger(work / "ledger.jsonl"), Places(None, work), "cpu", say, **options)


def run(work, count, where=FEW, **options) -> tuple[list[str], Ledger]:
    said: list[str] = []
    runner = bench(work, said, **options)
    runner.run(cells_of(TABLE, where, OverTasks(count), tiny=True))
    return [line for line in said if line.startswith("[")], runner.ledger


def rights(ledger: Ledger, count: int) -> list[list[int]]:
    return [record["right"] for record in ledger.find(cells_of(TABLE, FEW, OverTasks(count), tiny=True))]


def test_more_tasks_are_the_missing_ones_and_fewer_are_none(tmp_path):
    lines, ledger = run(tmp_path, 4)
    assert [line.partition(":")[0] for line in lines] == ["[1/2] digits 5", "[2/2] digits 5"]
    assert "4 tasks" in lines[0]
    first = rights(ledger, 4)
    assert run(tmp_path, 3)[0] == []
    lines, ledger = run(tmp_path, 7)
    assert len(lines) == 2
    parts = [r for r in ledger.records if r["cell"].get("kind") == "tasks"]
    assert sorted((part["first"], part["tasks"]) for part in parts) == [(0, 4), (0, 4), (4, 3), (4, 3)]
    assert [right[:4] for right in rights(ledger, 7)] == first
    in_one = run(tmp_path / "other", 7)[1]
    assert rights(in_one, 7) == rights(ledger, 7)


def test_a_network_may_have_had_a_teacher(tmp_path):
    said: list[str] = []
    runner, table = bench(tmp_path, said), get_table("fewshot-embedding")
    where = {"classifier": ("ncm",), "shots": (1,)}
    cells = cells_of(table, where, OverTasks(2), tiny=True)
    assert len({cell.key for cell in cells}) == 2
    taught = next(cell.network for cell in cells if cell.network.taught_by)
    runner.run(cells)
    made = [line for line in said if line.startswith("teacher: digits")]
    names = [line.partition(": ")[2].partition(": ")[2].rpartition(",")[0] for line in made]
    assert sorted(names) == ["convnet-2, refilled of wrn-10-1", "convnet-2, student", "wrn-10-1, student"]
    assert names.index("wrn-10-1, student") < names.index("convnet-2, refilled of wrn-10-1")
    assert any("convnet-2 (refilled), ncm" in line for line in said)
    assert runner.ledger.has(taught.as_cell())
    again: list[str] = []
    bench(tmp_path, again).run(cells)
    assert again == []


def test_an_interrupted_cell_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "RECORD_SECONDS", 0.0)
    whole = run(tmp_path / "whole", 6, together=2)[1]
    answers = tasks.right_answers

    def interrupted(*given):
        for place, some in enumerate(answers(*given)):
            if place == 2:
                raise KeyboardInterrupt
            yield some

    monkeypatch.setattr(tasks, "right_answers", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", 6, together=2)
    left = Ledger(tmp_path / "cut" / "ledger.jsonl")
    assert [r["tasks"] for r in left.records if r["cell"].get("kind") == "tasks"] == [2, 2]
    monkeypatch.setattr(tasks, "right_answers", answers)
    assert rights(run(tmp_path / "cut", 6, together=2)[1], 6) == rights(whole, 6)


def test_a_long_cell_says_how_far_it_is(tmp_path):
    told = Told()
    run(tmp_path, 5, FEW | {"method": ("neg-cosine",)}, together=2, reporter=told)
    assert ("training on the seen classes", 1, 1) in told.seen
    assert [done for what, done, _ in told.seen if what == "neg-cosine, 5-shot tasks"] == [2, 4, 5]


def test_a_page_has_intervals_and_paired_gains(tmp_path):
    _, ledger = run(tmp_path, 4)
    page = render(TABLE, ledger, OverTasks(4), tiny=True)
    row = next(line for line in page.splitlines() if line.startswith("| refilled |"))
    assert row.count("±") == 2 * row.count(",") > 0
    assert "95 % confidence interval" in page
    assert "standard deviation" not in page
    assert "[4]" in render(TABLE, ledger, OverTasks(8), tiny=True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ways": 6}, "there are 5 classes, too few for tasks of 6 ways"),
        ({"shots": 200}, r"class '5' has \d+ images; 200 shots and 5 queries need 205"),
        ({"method": "protonet", "ways": 6, "classes": "2:10"}, "there are 5 classes, too few for tasks of 6"),
        ({"method": "feat", "shots": 100, "queries": 1}, None),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_training(tmp_path, changes, said):
    (cell,) = cells_of(TABLE, FEW | {"method": ("1nn",)}, OverTasks(2), tiny=True)
    if said is None:  # it can
        bench(tmp_path).tasks.check([replace(cell, **changes)])
        return
    with pytest.raises(UserError, match=said):
        bench(tmp_path).run([replace(cell, **changes)])
    assert not (tmp_path / "teachers").exists()


def test_settings_are_chosen_on_other_classes(tmp_path, monkeypatch):
    drawn = []
    make = TaskTrials.value
    monkeypatch.setattr(TaskTrials, "value", lambda self, s: drawn.append(self.cell.classes) or make(self, s))
    said = []
    (path,) = tune_table(TABLE, FEW, bench(tmp_path, said), tmp_path / "out", 3, OverTasks(2), tiny=True)
    assert path.name == "miniimagenet-fewshot-resnet-12-refilled-5.json"
    assert drawn == ["0:5"] * 3  # those that are judged are 5:10
    assert sum("validation" in line for line in said) == 3
    assert not any(r["cell"].get("kind") == "tasks" for r in Ledger(tmp_path / "ledger.jsonl").records)
    again = []
    tune_table(TABLE, FEW, bench(tmp_path, again), tmp_path / "out", 3, OverTasks(2), tiny=True)
    assert not any("validation" in line for line in again)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("1nn", set()),
        ("svm", {"penalty"}),
        ("lr", {"penalty"}),
        ("fine-tune", {"lr", "head_lr", "steps"}),
        ("protonet", {"lr", "temperature"}),
        ("maml", {"lr", "inner_lr"}),
    ],
)
def test_each_method_is_searched_in_what_it_has(method, settings):
    cell = TABLE.cell({"teacher": "convnet-4", "method": method, "shots": 5})
    assert TaskTrials.space_of(cell).keys() == settings


def test_steps_are_whole_numbers():
    cell = TABLE.cell({"teacher": "convnet-4", "method": "refilled", "shots": 5}).with_settings(steps=100)
    space = TaskTrials.space_of(cell)
    assert {"lr", "steps", "strength", "tau_teacher"} <= space.keys()
    assert not {"comparison_tau_teacher", "embedding_share", "imitation"} & space.keys()
    assert (space["steps"].ends, space["steps"].whole) == ((25, 400), True)
    assert not space["strength"].whole


def test_on_the_command_line(tmp_path, capsys):
    def command(**options):
        BenchCommand("miniimagenet-fewshot", tiny=True, work=tmp_path, device="cpu", **options).run()

    command(method=("svm",), shots=(1,), tasks=3)
    out = capsys.readouterr().out
    assert "3 tasks" in out
    assert "--render --tasks 3" in out.replace("\n", " ")
    command(method=("svm",), shots=(1,), where=("teacher=convnet-4",), tune=2, tasks=2)
    assert "[2/2] penalty" in capsys.readouterr().out
    with pytest.raises(UserError, match="--tune-epochs is for trainings"):
        command(method=("svm",), shots=(1,), tune=2, tune_epochs=3)
    with pytest.raises(UserError, match="--seeds is for tables of trainings"):
        command(seeds=3)
    with pytest.raises(UserError, match="--tasks is for tables of few-shot tasks"):
        BenchCommand("lambda", tasks=3, tiny=True, work=tmp_path).run()
    BenchCommand(list=True).run()
    assert "miniimagenet-fewshot" in capsys.readouterr().out
