import json
import sys
from dataclasses import replace

import pytest
import torch

from refilled import evaluation
from refilled.cli import BenchCommand
from refilled.data import read_digits
from refilled.errors import UserError
from refilled.lock import locked_if_free
from refilled.methods import METHODS, get_method
from refilled.suite import (
    Bench,
    Ledger,
    OverSeeds,
    Places,
    get_table,
    old_and_new,
    tune_table,
)
from refilled.suite.choices import training_trials
from refilled.suite.choices.training_trials import TrainingTrials
from refilled.training import LossIsNotFinite

TABLE = get_table("cifar100-gkd")
WHERE = {"overlap": (60,), "student": ("wrn-16-2",), "method": ("refilled-two-stages",)}
ALL_SIX = {
    "strength", "tau_teacher", "tau_student", "comparison_tau_teacher", "comparison_tau_student",
    "embedding_share",
}  # fmt: skip


def bench(work, said=None) -> Bench:
    ledger = Ledger(work / "tiny.jsonl")
    return Bench(ledger, Places(None, work), "cpu", (said if said is not None else []).append)


def search(work, trials, said=None, where=WHERE, table=TABLE, seeds=1):
    (path,) = tune_table(
        table, where, bench(work, said), work / "tuned-out", trials, OverSeeds(seeds), tiny=True
    )
    return json.loads(path.read_text())


@pytest.fixture
def made_up(monkeypatch):
    """Trials that cost nothing: the best strength is 4, the best share 0.3."""

    def value(self, settings):
        off = abs(settings["strength"] - 4) / 20 + abs(settings["embedding_share"] - 0.3)
        return {"value": 1 - off}

    monkeypatch.setattr(TrainingTrials, "value", value)
    monkeypatch.setattr(Bench, "make_teachers", lambda self, cells: None)


def test_a_search_chooses_on_validation(tmp_path):
    said = []
    chosen = search(tmp_path, 3, said)
    assert set(chosen["settings"]) == ALL_SIX
    trials = [line for line in said if line.startswith("[")]
    assert len(trials) == chosen["trials"] == 3
    assert all("validation" in line for line in trials)
    assert chosen["val_accuracy"] >= chosen["val_accuracy_before"]
    assert chosen["settings_before"]["strength"] == 2.0  # the first trial is the table's own
    assert (chosen["seeds"], chosen["epochs"], chosen["val_fraction"]) == (1, 2, 0.1)
    assert {"commit", "table", "point", "cell", "space"} <= chosen.keys()
    assert (tmp_path / "tuned-out" / "cifar100-gkd-wrn-16-2-refilled-two-stages-60.json").exists()


def test_no_test_image_is_looked_at(tmp_path, monkeypatch):
    splits = read_digits(val_fraction=0.1)
    test = {bytes(image.numpy()) for image in splits.test.pixels.load(8)[0]}
    others = torch.cat([splits.train.pixels.load(8)[0], splits.val.pixels.load(8)[0]])
    only_test = test - {bytes(image.numpy()) for image in others}
    seen, loaded = [], []

    def watched(network, batches, **options):
        seen.extend(bytes(image.numpy()) for image in batches.source.take(torch.arange(len(batches.labels))))
        return predict(network, batches, **options)

    def teachers(self, cells):
        make(self, cells)
        monkeypatch.setattr(evaluation, "predict", watched)
        monkeypatch.setattr(
            training_trials, "without_test", lambda *given: loaded.append(split(*given)) or loaded[-1]
        )

    predict, make, split = evaluation.predict, Bench.make_teachers, training_trials.without_test
    monkeypatch.setattr(Bench, "make_teachers", teachers)
    tune_table(TABLE, WHERE, bench(tmp_path), tmp_path, 2, OverSeeds(1), tiny=True)
    assert seen
    assert only_test
    assert not only_test & set(seen)
    assert all(part.test is part.val for part in loaded)


def test_a_stage_that_is_left_out_has_no_length_to_search():
    point = {"student": "wrn-16-2", "overlap": 60, "method": "refilled-few"}
    assert "embedding_share" not in TrainingTrials.space_of(get_table("cifar100-gkd").cell(point))
    assert "strength" in TrainingTrials.space_of(get_table("cifar100-gkd").cell(point))


def test_a_search_goes_on_as_if_it_had_not_stopped(tmp_path, made_up):
    whole = search(tmp_path / "a", 14)
    first, second = [], []
    search(tmp_path / "b", 9, first)
    resumed = search(tmp_path / "b", 14, second)
    assert len([line for line in first if line.startswith("[")]) == 9
    assert len([line for line in second if line.startswith("[")]) == 5
    assert resumed["settings"] == whole["settings"]
    files = [next((tmp_path / name / "tuned").glob("*.jsonl")).read_text() for name in "ab"]
    assert files[0] == files[1]
    third = []
    assert search(tmp_path / "b", 9, third)["trials"] == 9  # what was asked for counts, not what is there
    assert not any(line.startswith("[") for line in third)


def test_a_search_finds_what_is_better(tmp_path, made_up):
    chosen = search(tmp_path, 40)
    assert chosen["val_accuracy"] > chosen["val_accuracy_before"] + 0.1
    for name, value in chosen["settings"].items():
        low, high = chosen["space"][name]
        assert low <= value <= high


def test_other_seeds_or_epochs_are_another_search(tmp_path, made_up):
    search(tmp_path, 1)
    search(tmp_path, 1, seeds=2)
    tune_table(TABLE, WHERE, bench(tmp_path), tmp_path, 1, OverSeeds(1), 4, tiny=True)
    assert len(list((tmp_path / "tuned").glob("*.jsonl"))) == 3


def test_each_method_is_searched_in_what_it_has(tmp_path):
    def space(method, **where):
        (point,) = TABLE.points(WHERE | {"method": (method,)} | where)
        return TrainingTrials.space_of(TABLE.cell(point))

    assert set(space("refilled-two-stages")) == ALL_SIX
    assert space("refilled-two-stages")["strength"].ends == (0.1, 10.0)
    taus = {"comparison_tau_teacher", "comparison_tau_student"}
    assert set(space("refilled")) == taus | {"embedding_share", "imitation"}  # what is off is not searched
    assert set(space("refilled-few")) == {"strength", "tau_teacher", "tau_student", "imitation"}
    assert set(space("refilled-lkd")) == {"strength", "tau_teacher", "tau_student"}
    assert set(space("rkd")) == {"embedding_share", "distance_weight", "angle_weight"}
    assert space("student") == {}
    assert space("teacher-ncm", student=("wrn-40-2",)) == {}


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("student", "fine-tune")])
def test_all_that_are_compared_can_be_tuned_and_every_value_is_one_that_they_take(method):
    cell = replace(
        get_table("cifar100-standard").cell({"student": "wrn-16-2", "method": "kd"}), method=method
    )
    space = TrainingTrials.space_of(cell)
    assert space
    for name, found in space.items():
        own = getattr(get_method(method).settings(), name)
        assert found.low <= own <= found.high
        for value in found.ends:
            get_method(method).settings(**{name: value})


def test_a_share_is_no_multiple(tmp_path):
    kd = get_table("cifar100-standard").cell({"student": "wrn-16-2", "method": "kd"})
    space = TrainingTrials.space_of(kd)
    assert (space["weight"].ends, space["weight"].log) == ((0.1, 1.0), False)
    assert (space["tau"].ends, space["tau"].log) == ((1.0, 16.0), True)


def test_nothing_to_tune_is_said(tmp_path):
    with pytest.raises(UserError, match="nothing that was chosen of cifar100-gkd has a setting to tune"):
        search(tmp_path, 1, where=WHERE | {"method": ("student",)})


def test_a_training_that_breaks_down_is_a_bad_trial(tmp_path, monkeypatch):
    def broken(self, cell):
        raise LossIsNotFinite("loss term 'local_kd' became nan")
        yield

    monkeypatch.setattr(TrainingTrials, "_validated", broken)
    monkeypatch.setattr(Bench, "make_teachers", lambda self, cells: None)
    said = []
    assert search(tmp_path, 2, said)["val_accuracy"] == 0.0
    assert "became nan" in said[0]


def test_a_damaged_file_is_named(tmp_path, made_up):
    search(tmp_path, 1)
    (file,) = (tmp_path / "tuned").glob("*.jsonl")
    file.write_text('{"settings": {"stren')
    with pytest.raises(UserError, match=r"\.jsonl is damaged .* delete it to search anew"):
        search(tmp_path, 2)


def test_without_optuna_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"tuning needs optuna: pip install 'refilled\[tune\]'"):
        search(tmp_path, 1)
    assert not (tmp_path / "teachers").exists()


def test_a_table_of_embeddings_is_searched_by_them(tmp_path):
    where = {"method": ("refilled-stage1",), "student": ("wrn-16-2",)}
    chosen = search(tmp_path, 1, where=where, table=get_table("ncm-after-stage-1"))
    assert chosen["measure"] == "ncm"
    assert set(chosen["settings"]) == {"comparison_tau_teacher", "comparison_tau_student"}


def test_old_and_new_classes_are_searched_by_their_own_criterion(tmp_path, monkeypatch):
    """On images that neither student nor teacher has seen; none of them a test image."""
    opened, looked_at = [], []
    read, hold = old_and_new.read_splits, old_and_new.choose_holding
    monkeypatch.setattr(old_and_new, "read_splits", lambda *given: opened.append(read(*given)) or opened[-1])
    monkeypatch.setattr(
        old_and_new,
        "choose_holding",
        lambda name, parts, *given: looked_at.extend(parts) or hold(name, parts, *given),
    )
    where = {"method": ("ewc",), "student": ("mobilenet-1",), "criterion": ("old", "harmonic")}
    paths = tune_table(
        get_table("cub-incremental"), where, bench(tmp_path), tmp_path / "out", 2, OverSeeds(1), tiny=True
    )
    assert [json.loads(path.read_text())["measure"] for path in paths] == ["joint_old", "joint_harmonic"]
    chosen = json.loads(paths[0].read_text())
    assert "ewc_strength" in chosen["settings"]
    assert chosen["cell"]["teacher"]["settings"]["data"]["val_fraction"] == 0.1
    trials = [
        [json.loads(line)["value"] for line in file.read_text().splitlines()]
        for file in sorted((tmp_path / "tuned").glob("*.jsonl"))
    ]
    assert len(trials) == 2
    assert any(value > 0 for values in trials for value in values)
    assert len(looked_at) == 4
    assert all(part is splits.val for part, splits in zip(looked_at, opened))


def test_a_search_is_one_processs_at_a_time(tmp_path, made_up):
    search(tmp_path, 1)
    (lock,) = (tmp_path / "tuned").glob("*.lock")
    with locked_if_free(lock, "--work") as ours:
        assert ours
        with pytest.raises(UserError, match="another process is making the trials of"):
            search(tmp_path, 2)
    assert search(tmp_path, 2)["trials"] == 2


def test_what_cannot_be_run_is_refused_before_any_search(tmp_path, made_up, monkeypatch):
    cells = []
    monkeypatch.setattr(Bench, "check", lambda self, given: cells.extend(given))
    where = WHERE | {"method": ("refilled-two-stages", "refilled-minus", "student")}
    tune_table(TABLE, where, bench(tmp_path), tmp_path / "out", 1, OverSeeds(1), tiny=True)
    assert [cell.method for cell in cells] == ["refilled-minus", "refilled-two-stages"]


def test_on_the_command_line(tmp_path, made_up, capsys):
    BenchCommand(
        "cifar100-gkd", overlap=(60,), student=("wrn-16-2",), method=("refilled-two-stages",),
        seeds=1, tune=2, tune_epochs=2, tiny=True, work=tmp_path, device="cpu",
    ).run()  # fmt: skip
    assert (tmp_path / "tuned" / "cifar100-gkd-wrn-16-2-refilled-two-stages-60.json").exists()
    assert "[2/2] strength" in capsys.readouterr().out
