"""The command line: help, the list of methods, and what cannot be parsed."""

from dataclasses import fields

import pytest

from refilled.cli.field_docs import field_docs
from refilled.methods import METHODS

TRAINING = ("--epochs", "--batch-size", "--lr", "--schedule", "--precision", "--device", "--seed")
DATA = ("--classes", "--shots", "--val-fraction", "--image-size", "--augment", "--skip-bad-images")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("demo", ("--out", "--seeds", "--shots", "--device")),
        ("train", ("--student", "--out", "--resume", *TRAINING, *DATA)),
        (
            "distill",
            (
                "--teacher",
                "--student",
                "--method",
                "--set",
                "--compare",
                "--seeds",
                "--resume",
                *TRAINING,
                *DATA,
            ),
        ),
        ("evaluate", ("RUN", "--part", "--device", "--skip-bad-images")),
        ("methods", ()),
    ],
)
def test_help(command, name, options):
    code, out, _ = command(name, "--help")
    assert code == 0
    assert f"refilled {name}" in out
    assert [option for option in options if option not in out] == []


def test_a_network_alone_has_no_options_about_a_teacher(command):
    alone, taught = (command(name, "--help")[1] for name in ("train", "distill"))
    for option in ("--keep-teacher-classes", "--keep-weight", "--keep-tau", "--calibrate", "--keep-level"):
        assert option not in alone
        assert option in taught


def test_help_lists_the_commands(command):
    code, out, _ = command("--help")
    assert code == 0
    assert all(name in out for name in ("demo", "train", "distill", "evaluate", "methods"))


def test_help_of_bench_shows_a_line_for_each_example(command):
    lines = command("bench", "--help")[1].splitlines()
    assert "refilled bench --list" in lines
    assert "refilled bench --figures overlap weights" in lines


def test_help_of_distill_names_the_methods_to_know_first_and_where_the_others_are(command):
    out = " ".join(command("distill", "--help")[1].replace("│", " ").split())
    assert "auto: refilled, or refilled-few where there are fewer than 250" in out
    assert f"{len(METHODS) - 7} more: see `refilled methods`" in out
    assert "sskd" not in out


def test_methods(command):
    code, out, err = command("methods")
    assert (code, err) == (0, "")
    for name, method in METHODS.items():
        assert f"{name}: {method.summary}" in out
    assert "    strength=2.0" in out
    assert "    weight=head" in out


def test_one_method_explained(command):
    code, out, err = command("methods", "refilled-few")
    assert (code, err) == (0, "")
    assert out.startswith(f"refilled-few: {METHODS['refilled-few'].summary}")
    assert "    imitation=5.0\n        Weight of imitation, in both stages" in out
    assert "refilled-emb" not in out
    code, _, err = command("methods", "refiled")
    assert code == 2
    assert "unknown method 'refiled'; did you mean 'refilled'" in err


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_of_every_method_is_explained(name):
    kind = METHODS[name].settings
    docs = field_docs(kind)
    assert [field.name for field in fields(kind) if len(docs.get(field.name, "")) < 10] == []


@pytest.mark.parametrize("argv", [(), ("nonsense",), ("train",), ("train", "photos", "--epochs", "many")])
def test_what_cannot_be_parsed_exits_with_2(command, argv):
    code, _, err = command(*argv)
    assert code == 2
    assert "Traceback" not in err
