import dataclasses
import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from refilled.errors import UserError
from refilled.methods.refilled_settings import TwoStageSettings
from refilled.suite import Cell, Ledger, TeacherCell
from refilled.suite.cell import BEFORE, pairs
from refilled.suite.kinds import key_of
from refilled.suite.ledger import commit

CPU = torch.device("cpu")
TEACHER = TeacherCell("wrn-10-1", "digits", "0:5", settings=pairs(epochs=2))


def cell(seed: int = 0, method: str = "refilled", **settings) -> Cell:
    return Cell(
        "digits", "convnet-1", method, TEACHER, "2:7", seed=seed, settings=pairs(epochs=4, **settings)
    )


def measured(accuracy: float = 0.5) -> dict:
    return {"test_accuracy": accuracy, "epochs": 4, "seconds": 1.0}


def test_a_key_is_the_trainings_own():
    same = Cell("digits", "convnet-1", "refilled", TEACHER, "2:7", settings=(("epochs", 4),))
    assert cell().key == same.key == cell(strength=0.0).key  # 0 is the default
    others = [
        cell(seed=1), cell(method="refilled-lkd"), cell(strength=3.0), cell(lr=0.05),
        Cell("digits", "convnet-1", "refilled", TeacherCell("wrn-10-2", "digits"), "2:7"),
    ]  # fmt: skip
    assert len({other.key for other in [*others, cell()]}) == 6
    assert cell(compile=True, device="cpu").key == cell().key  # how, not what


def test_methods_that_differ_in_their_defaults_alone_are_one_training():
    two, default = cell(method="refilled-two-stages"), cell(method="refilled")
    spelt = dataclasses.asdict(TwoStageSettings())
    assert two.key != default.key
    assert two.key == cell(method="refilled", **spelt).key == cell(method="refilled-few", **spelt).key
    assert cell(method="refilled-two-stages", weight="none").key == cell(method="refilled-minus").key


def test_records_come_back(tmp_path):
    path = tmp_path / "deep" / "ledger.jsonl"
    ledger = Ledger(path)
    assert not ledger.has(cell())
    ledger.append(cell(), measured(), CPU)
    ledger.append(cell(1), measured(0.75), CPU)
    assert ledger.has(cell())
    again = Ledger(path)
    assert again.has(cell(1))
    assert not again.has(cell(2))
    assert [r["test_accuracy"] for r in again.find(map(cell, (1, 2, 0)))] == [0.75, 0.5]
    record = again.records[0]
    assert record["cell"]["settings"]["method"]["strength"] == 0.0
    assert {"device", "commit", "versions", "time", "epochs", "seconds", "key"} <= record.keys()
    assert json.loads(path.read_text().splitlines()[1])["key"] == cell(1).key


def test_a_setting_that_is_younger_than_a_record_counts_with_its_default(tmp_path):
    path = tmp_path / "ledger.jsonl"
    Ledger(path).append(cell(), measured(), CPU)
    record = json.loads(path.read_text())
    del record["cell"]["settings"]["method"]["strength"]
    del record["cell"]["teacher"]["settings"]["train"]["schedule"]
    path.write_text(json.dumps(record) + "\n")
    assert Ledger(path).has(cell())
    record["cell"]["settings"]["method"]["fade"] = 0.5  # a default that has changed since
    path.write_text(json.dumps(record) + "\n")
    assert not Ledger(path).has(cell())
    assert Ledger(path).has(cell(fade=0.5))


def test_a_setting_that_changes_nothing_changes_no_key(monkeypatch):
    """So that what has begun is found again, by whoever brings the setting."""
    from refilled.suite import cell as cells

    now, usual = cell().key, cells._defaults
    other = cell(strength=1.0)

    def without(method):
        groups = {group: dict(values) for group, values in usual(method).items()}
        groups["train"].pop("precision", None)
        groups["method"].pop("imitation", None)
        return groups

    monkeypatch.setattr(cells, "_defaults", without)
    described = cell().to_json()
    for one in (described, described["teacher"]):
        one["settings"]["train"].pop("precision")
        one["settings"]["method"].pop("imitation", None)
    assert key_of(described) == now != other.key


def test_a_default_that_changes_does_not_change_what_was_trained_before_there_was_the_setting(
    tmp_path, monkeypatch
):
    path = tmp_path / "ledger.jsonl"
    Ledger(path).append(cell(), measured(), CPU)
    record = json.loads(path.read_text())
    del record["cell"]["settings"]["method"]["fade"]
    path.write_text(json.dumps(record) + "\n")
    monkeypatch.setitem(BEFORE, "fade", 0.5)  # as if 0.5 had been the default when it was written
    assert not Ledger(path).has(cell())
    assert Ledger(path).has(cell(fade=0.5))


def test_what_a_head_was_where_it_knew_some_classes_is_a_run_of_its_own(tmp_path):
    """``head_shared`` became ``head_same`` only for teachers that know all of the student's classes."""
    path, every = tmp_path / "ledger.jsonl", replace(cell(head_share=0.0), classes="1:4")
    for one in (cell(), every):
        Ledger(path).append(one, measured(), CPU)
    text = path.read_text()
    for weight in (0.0, 4.0):
        path.write_text(text.replace('"head_same": 0.0', f'"head_shared": {weight}'))
        assert Ledger(path).has(every.with_settings(head_same=weight))
        assert Ledger(path).has(cell()) == (weight == 0)
    # where the term does not exist, a default that is not 0 is the same training
    for name in ("head_same", "head_share"):
        assert cell(**{name: 0.5}).key == cell().key
        assert every.with_settings(**{name: 0.5}).key != every.key
        some = replace(every, classes="1:6")
        assert some.with_settings(**{name: 0.5}).key == some.key
    # nor is how a term fades that is not there
    assert cell(head_fade=0.5).key == cell().key
    heard = every.with_settings(head_share=0.5)
    assert heard.with_settings(head_fade=0.5).key != heard.key
    assert cell(head_fade=0.5, head_unlabelled=1.0).key != cell(head_unlabelled=1.0).key


def test_a_cell_has_the_rate_that_it_says(tmp_path):
    """Other than a run by itself, whose default depends on where the student starts."""
    fine = cell(method="fine-tune")
    assert fine.resolved()["train"]["lr"] == fine.arguments()["lr"] == 0.1
    assert fine.with_settings(lr=1e-4).arguments()["lr"] == 1e-4


def test_broken_lines_are_named_and_kept(tmp_path):
    path = tmp_path / "ledger.jsonl"
    Ledger(path).append(cell(), measured(), CPU)
    with open(path, "a") as file:
        file.write('{"key": "abc"}\nnot json at all\n{"key": "cut sho')
    before = path.read_bytes()
    ledger = Ledger(path)
    assert [broken.line for broken in ledger.broken] == [2, 3, 4]
    assert "line 3 is no record" in ledger.notes()[1]
    ledger.append(cell(1), measured(), CPU)
    assert path.read_bytes().startswith(before)
    again = Ledger(path)
    assert again.has(cell())
    assert again.has(cell(1))
    assert len(again.broken) == 3


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"cell": {"kind": "tasks", "method": "few-shot-of-tomorrow"}}', "unknown few-shot method"),
        ("[" * 100_000, "RecursionError"),
        ('{"cell": {"method": "student"}}', "KeyError"),
    ],
    ids=["unknown method", "deep", "no data"],
)
def test_lines_of_other_versions_and_nonsense_are_named_too(tmp_path, line, reason):
    path = tmp_path / "ledger.jsonl"
    path.write_text(line + "\n")
    Ledger(path).append(cell(), measured(), CPU)
    ledger = Ledger(path)
    assert [broken.line for broken in ledger.broken] == [1]
    assert reason in ledger.notes()[0]
    assert ledger.has(cell())


DAMAGE = {
    "commit": None, "device": 3, "epochs": 1.5, "seconds": "long", "test_accuracy": 75.0, "ncm": 7.5,
    "one_nn": -0.1,
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_records_that_no_page_can_be_made_of_are_named(tmp_path, name):
    path = tmp_path / "ledger.jsonl"
    for seed in (0, 1):
        Ledger(path).append(cell(seed), measured(), CPU)
    first, second = path.read_text().splitlines()
    record = json.loads(first)
    texts = [json.dumps(record | {name: DAMAGE[name]})]
    if record.pop(name, None) is not None:
        texts.append(json.dumps(record))
    for text in texts:
        path.write_text(text + "\n" + second + "\n")
        before, ledger = path.read_bytes(), Ledger(path)
        assert [broken.line for broken in ledger.broken] == [1]
        assert f"ValueError: {name} is" in ledger.notes()[0]
        assert not ledger.has(cell())
        assert ledger.has(cell(1))
        assert path.read_bytes() == before
    assert len(texts) == (1 if name in ("ncm", "one_nn") else 2)  # these need not be there


def test_a_number_that_is_none_is_named(tmp_path):
    path = tmp_path / "ledger.jsonl"
    for value in (float("nan"), float("inf"), "0.5", True, None):
        path.unlink(missing_ok=True)
        Ledger(path).append(cell(), measured() | {"test_accuracy": value}, CPU)
        assert len(Ledger(path).broken) == 1, value


def test_a_folder_is_no_ledger(tmp_path):
    with pytest.raises(UserError, match="is a folder"):
        Ledger(tmp_path)


def test_two_processes_may_append_at_once(tmp_path):
    path = tmp_path / "ledger.jsonl"
    code = f"""
import sys, torch
from pathlib import Path
from refilled.suite import Cell, Ledger
start = int(sys.argv[1])
ledger = Ledger(Path({str(path)!r}))
for seed in range(start, start + 40):
    measured = {{"test_accuracy": 0.5, "epochs": 1, "seconds": 1.0, "padding": "x" * 5000}}
    ledger.append(Cell("digits", "convnet-1", "student", seed=seed), measured, torch.device("cpu"))
"""
    both = [subprocess.Popen([sys.executable, "-c", code, str(start)]) for start in (0, 1000)]
    assert [process.wait() for process in both] == [0, 0]
    ledger = Ledger(path)
    assert len(ledger.records) == 80
    assert ledger.broken == []


def test_what_others_append_is_taken(tmp_path):
    """Also what lies between two appends of one's own, and behind a line that was cut short."""
    path = tmp_path / "ledger.jsonl"
    ours, theirs = Ledger(path), Ledger(path)
    theirs.append(cell(1), measured(0.25), CPU)
    assert not ours.has(cell(1))
    ours.refresh()
    assert ours.of(cell(1))["test_accuracy"] == 0.25
    theirs.append(cell(2), measured(), CPU)
    ours.append(cell(3), measured(), CPU)
    assert all(map(ours.has, map(cell, (1, 2, 3))))
    with open(path, "a") as file:
        file.write('{"key": "cut sho')
    ours.refresh()
    theirs.append(cell(4), measured(), CPU)
    for ledger in (ours, theirs):
        ledger.refresh()
        ledger.refresh()
        assert [broken.line for broken in ledger.broken] == [4]
        assert [record["key"] for record in ledger.records] == [cell(seed).key for seed in (1, 2, 3, 4)]


@pytest.mark.parametrize("others", [1, 3, 20], ids=["shorter", "as long", "longer"])
def test_a_file_that_another_has_taken_the_place_of_is_read_anew(tmp_path, others):
    """As when what other machines have measured is merged into it."""
    path = tmp_path / "ledger.jsonl"
    ours = Ledger(path)
    for seed in range(3):
        ours.append(cell(seed), measured(), CPU)
    other = tmp_path / "other.jsonl"
    for seed in range(10, 10 + others):
        Ledger(other).append(cell(seed), measured(), CPU)
    other.replace(path)
    ours.refresh()
    assert [ours.has(cell(seed)) for seed in (0, 10, 9 + others)] == [False, True, True]
    assert ours.broken == []
    Ledger(path).append(cell(8), measured(), CPU)
    ours.append(cell(9), measured(), CPU)
    assert all(map(ours.has, map(cell, (8, 9, 10))))
    assert len(Ledger(path).records) == len(ours.records) == others + 2


def test_the_commit_is_that_of_the_code_that_runs(tmp_path, monkeypatch):
    """Not of what lies there when the number comes, hours later."""
    commit.cache_clear()
    monkeypatch.setenv("REFILLED_COMMIT", "early")
    ledger = Ledger(tmp_path / "ledger.jsonl")
    monkeypatch.setenv("REFILLED_COMMIT", "late")
    assert ledger.append(cell(), measured(), CPU)["commit"] == "early"
    commit.cache_clear()
