"""Settings by name and as text."""

from dataclasses import dataclass
from typing import Literal

import pytest

from refilled import UserError
from refilled.methods import METHODS, Method, get_method
from refilled.runs import DataSettings
from refilled.runs.settings import field_names, parse_assignments, sort_settings
from refilled.training import TrainSettings


@dataclass(frozen=True)
class Kinds:
    number: int = 1
    share: float = 0.5
    maybe: float | None = None
    count: int | None = None
    kind: Literal["head", "none"] = "head"
    flag: bool = False
    text: str = ""


METHOD = Method("kinds", "one setting of every type", Kinds, lambda *_: [])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("number=3", 3),
        ("number=-3", -3),
        ("share=2", 2.0),
        ("share=1e-3", 1e-3),
        ("maybe=none", None),
        ("maybe=None", None),
        ("maybe=0.2", 0.2),
        ("count=7", 7),
        ("count=none", None),
        ("kind=none", "none"),
        ("flag=true", True),
        ("flag=false", False),
        ("text=a=b", "a=b"),
    ],
)
def test_values_have_the_type_of_the_setting(text, value):
    (found,) = parse_assignments(METHOD, (text,)).values()
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("number=1.5", "number takes a value of type int, not '1.5'"),
        ("share=much", "share takes a value of type float, not 'much'"),
        ("share=none", "share takes a value of type float, not 'none'"),
        ("share=", "share takes a value of type float, not ''"),
        ("count=x", "count takes a value of type int, not 'x'"),
        ("kind=haed", "unknown value of kind 'haed'; did you mean 'head'"),
        ("numbr=1", "unknown setting of method kinds 'numbr'; did you mean 'number'"),
        ("number", "--set takes NAME=VALUE, not 'number'"),
        ("=3", "unknown setting"),
    ],
)
def test_wrong_texts(text, said):
    with pytest.raises(UserError) as caught:
        parse_assignments(METHOD, (text,))
    assert said in str(caught.value)


def test_several_at_once():
    found = parse_assignments(get_method("refilled"), ("strength=3", "weight=none", "margin=none"))
    assert found == {"strength": 3.0, "weight": "none", "margin": None}
    assert parse_assignments(get_method("refilled"), ()) == {}


def test_settings_go_to_their_rooms():
    train, data, own = sort_settings(get_method("refilled"), {"lr": 0.3, "shots": 4, "strength": 5.0})
    assert (train.lr, data.shots, own.strength) == (0.3, 4, 5.0)
    assert (train.epochs, data.val_fraction) == (TrainSettings().epochs, DataSettings().val_fraction)


@pytest.mark.parametrize("method", METHODS)
def test_no_name_means_two_things(method):
    names = [
        *field_names(TrainSettings),
        *field_names(DataSettings),
        *field_names(get_method(method).settings),
    ]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "near"), [("strenght", "strength"), ("epoch", "epochs"), ("shot", "shots"), ("LR", "lr")]
)
def test_an_unknown_setting_is_refused_with_the_nearest(name, near):
    with pytest.raises(
        UserError, match=f"unknown setting of method refilled '{name}'; did you mean '{near}'"
    ):
        sort_settings(get_method("refilled"), {name: 3})


def test_another_methods_setting_is_refused():
    with pytest.raises(UserError, match="unknown setting of method kd 'strength'"):
        sort_settings(get_method("kd"), {"strength": 3.0})
    with pytest.raises(UserError, match="unknown setting of method student 'tau'"):
        sort_settings(get_method("student"), {"tau": 3.0})


@pytest.mark.parametrize(
    "wrong",
    [{"weight": "haed"}, {"posterior": "Dot"}, {"schedule": "linear"}, {"precision": "half"}, {"lr": 0.0}],
)
def test_values_that_are_no_choice_are_refused_from_python_too(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        sort_settings(get_method("refilled"), wrong)


@pytest.mark.parametrize("share", [1, -1, 2, float("nan")])
def test_share_of_the_first_stage(share):
    with pytest.raises(UserError, match="embedding_share"):
        sort_settings(get_method("refilled"), {"embedding_share": share})


@pytest.mark.parametrize("name", ["refiled", "Refilled", "kdd", "nonsense"])
def test_unknown_methods(name):
    with pytest.raises(UserError, match=f"unknown method '{name}'"):
        get_method(name)


def test_hints_for_a_busy_machine_and_one_with_bfloat16(monkeypatch):
    import os

    import torch

    from refilled.runs import words
    from refilled.training import TrainSettings

    cpu = torch.device("cpu")
    monkeypatch.setattr(words, "worker_count", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (3.4, 0.0, 0.0), raising=False)
    monkeypatch.setattr(words, "bfloat16_would_pay", lambda device: True)
    both = words.hints(cpu, TrainSettings())
    assert "--precision bfloat16" in both[0]
    assert "busy (load 3.4 on 2 cores)" in both[1]
    monkeypatch.setattr(os, "getloadavg", lambda: (1.2, 0.0, 0.0), raising=False)
    assert words.hints(cpu, TrainSettings(precision="float32")) == []


@pytest.mark.parametrize(
    ("given", "off"),
    [
        ({"weight": "pl"}, "strength is 0: raise strength, or leave weight out"),
        (
            {"embedding_share": 0.0, "margin": 0.2},
            "embedding_share is 0: raise embedding_share, or leave margin out",
        ),
        (
            {"head_tau": 2.0, "head_share": 0.0},
            "head_same and head_share and head_unlabelled are 0: raise head_same or head_share or "
            "head_unlabelled, or leave head_tau",
        ),
        (
            {"fade": 0.5, "imitation": 0.0, "imitation_unlabelled": 0.0, "head_share": 0.0},
            "strength and imitation and imitation_new and imitation_unlabelled and head_same and head_share "
            "and head_unlabelled are 0",
        ),
        (
            {"fade": 0.5, "imitation": 0.0, "imitation_unlabelled": 0.0, "head_fade": 0.0},
            "strength and imitation and imitation_new and imitation_unlabelled are 0",
        ),
    ],
)
def test_a_setting_of_a_term_that_is_off_is_refused(given, off):
    with pytest.raises(UserError, match=f"does nothing in refilled while {off}"):
        sort_settings(get_method("refilled"), given)


def test_it_may_be_given_with_its_term_or_as_it_is():
    own = sort_settings(get_method("refilled"), {"weight": "pl", "strength": 1.0})[2]
    assert (own.weight, own.strength) == ("pl", 1.0)
    assert sort_settings(get_method("refilled"), {"weight": "head"})[2].weight == "head"
    assert sort_settings(get_method("refilled-two-stages"), {"weight": "pl"})[2].weight == "pl"
