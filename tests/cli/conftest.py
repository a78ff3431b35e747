"""Commands, and a trained teacher, for the tests of the command line."""

import shutil
import sys

import pytest

from refilled import cli

from .outcomes import TINY


@pytest.fixture
def command(monkeypatch, capsys):
    """``command("train", "photos", …)``: exit code, standard output and standard error of a command."""

    def run(*argv):
        monkeypatch.setattr(sys, "argv", ["refilled", *map(str, argv)])
        capsys.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code or 0
        return (code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory):
    """A place for :func:`trained` to keep its teacher in."""
    return tmp_path_factory.mktemp("trained") / "teacher"


@pytest.fixture
def trained(command, image_folder, trained_once):
    """``photos`` of three classes, and ``teacher``, a network that was trained on them."""
    image_folder(["cat", "dog", "owl"])
    if not trained_once.exists():
        made = command("train", "photos", "--student", "wrn-10-1", *TINY, "--out", trained_once)
        assert made[0] == 0
    shutil.copytree(trained_once, "teacher")


@pytest.fixture
def distill(command, trained):
    """``distill("--lr", 3)``: the command with a tiny student; ``data`` and ``teacher`` may be others."""

    def run(*argv, data="photos", teacher="teacher", student="convnet-1", out="mine"):
        models = ("--teacher", teacher, "--student", student)
        return command("distill", data, *models, *TINY, "--out", out, *argv)

    return run
