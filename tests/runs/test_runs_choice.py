"""Which method is taken where it is left to us, and that it is said once."""

import pytest

from refilled.errors import UserError
from refilled.runs import choice, compare, distill
from refilled.runs.choice import choose_method
from refilled.runs.shared import Shared

FAST = {"epochs": 2, "batch_size": 64, "val_fraction": 0.0, "device": "cpu"}


def chosen(method="auto", out=None, **settings):
    shared = Shared()
    name = choose_method(method, "digits", out, settings, shared)
    return name, shared.notes


@pytest.fixture(scope="module")
def teacher():
    return distill(None, "convnet-1", "digits", "student", progress=False, classes="0:5", **FAST).student


def test_few_images_and_many(monkeypatch):
    assert choice.FEW_IMAGES == 250
    name, (said, advice) = chosen(shots=5)
    assert name == "refilled-few"
    assert said == "5 training images per class: method refilled-few (or choose --method refilled)"
    assert "--unlabelled" in advice
    assert len(chosen(shots=5, classes="0:5", unlabelled_classes="5:10")[1]) == 1  # they are there
    assert [len(chosen(shots=number, val_fraction=0.0)[1]) for number in (100, 101)] == [2, 1]  # the advice
    monkeypatch.setattr(choice, "FEW_IMAGES", 110)  # there are no more digits
    name, notes = chosen(shots=110, val_fraction=0.0)
    assert name == "refilled"
    assert notes == ["110 training images per class: method refilled (or choose --method refilled-few)"]
    assert chosen(shots=109, val_fraction=0.0)[0] == "refilled-few"


@pytest.mark.parametrize("name", ["refilled", "kd", "no-such-method"])
def test_what_is_asked_for_is_taken_and_no_data_is_opened(name):
    shared = Shared()
    assert choose_method(name, "no such folder", None, {}, shared) == name
    assert shared.notes == []


def test_wrong_settings_are_refused():
    with pytest.raises(UserError, match="shotz"):
        chosen(shotz=5)


def test_a_run_says_it_and_is_named_by_it(teacher, capsys):
    result = distill(teacher, "convnet-1", "digits", "auto", shots=4, classes="3:8", **FAST)
    assert result.method == "refilled-few"
    assert capsys.readouterr().err.count("4 training images per class: method refilled-few") == 1


def test_a_comparison_says_it_once_and_settings_are_for_either(teacher, capsys):
    verdict = compare(
        teacher, "convnet-1", "digits", "auto", seeds=2, shots=4, classes="3:8", strength=0.5, **FAST
    )
    assert {result.method for result in verdict.with_teacher} == {"refilled-few"}
    assert {result.method for result in verdict.alone} == {"student"}
    assert capsys.readouterr().err.count("images per class: method") == 1


def test_a_run_that_has_begun_keeps_its_method(teacher, tmp_path):
    out = tmp_path / "run"
    settings = {"shots": 4, "classes": "3:8"} | FAST
    distill(teacher, "convnet-1", "digits", "refilled", out, progress=False, **settings)
    assert chosen(out=out, **settings) == ("refilled", [])
    again = distill(teacher, "convnet-1", "digits", "auto", out, resume=True, progress=False, **settings)
    assert again.method == "refilled"


def test_where_the_teacher_knows_all_classes_the_better_method_is_named(monkeypatch, teacher, capsys):
    """With many images; with few, refilled-few is the one that was measured."""
    settings = FAST | {"classes": "0:5"}

    def said(method, **changes):
        distill(teacher, "convnet-1", "digits", method, **(settings | changes))
        return "--method dkd" in " ".join(capsys.readouterr().err.split())

    assert not said("auto")
    monkeypatch.setattr(choice, "FEW_IMAGES", 100)
    assert said("auto")
    assert said("refilled")
    assert not said("dkd")
    for changes in (
        {"classes": "2:7"}, {"classes": "0:3"},  # dkd takes no teacher that knows more
        {"unlabelled_classes": "5:10"}, {"keep_teacher_classes": True},
    ):  # fmt: skip
        assert not said("auto", **changes), changes
