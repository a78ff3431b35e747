"""A run that goes on must find the images it began with."""

import json
from pathlib import Path

import pytest

from refilled.errors import UserError
from refilled.runs import distill

FAST = {"epochs": 2, "batch_size": 8, "image_size": 8, "device": "cpu", "progress": False}


def run(folder, out, **settings):
    return distill(None, "convnet-1", folder, "student", out, **(FAST | settings))


@pytest.fixture
def begun(image_folder, tmp_path):
    """A run that was not finished."""
    folder, out = image_folder(["cat", "dog", "owl"], counts=10), tmp_path / "run"
    run(folder, out)
    (out / "result.json").unlink()
    return folder, out


def test_the_same_images_are_gone_on_with(begun):
    folder, out = begun
    assert run(folder, out, resume=True).accuracy >= 0
    assert json.loads((out / "config.json").read_text())["data"]["classes"] == ["cat", "dog", "owl"]


def test_more_images_are_refused_with_their_number(begun, image_folder):
    folder, out = begun
    for path in sorted((folder / "cat").iterdir())[:5]:
        (folder / "cat" / f"again-{path.name}").write_bytes(path.read_bytes())
    with pytest.raises(
        UserError, match=r"is not what .* began with: it had \d+ training images, and has \d+"
    ):
        run(folder, out, resume=True)


def test_another_name_of_a_class_is_refused(begun):
    folder, out = begun
    (folder / "owl").rename(folder / "zebra")
    with pytest.raises(UserError, match=r"its classes have changed \(without owl; with zebra\)"):
        run(folder, out, resume=True)


def test_other_files_are_refused(begun):
    folder, out = begun
    first = sorted((folder / "cat").iterdir())[0]
    first.rename(first.with_name("zzz" + first.suffix))
    with pytest.raises(UserError, match="its images have changed"):
        run(folder, out, resume=True)


def test_a_run_folder_of_before_goes_on(begun):
    folder, out = begun
    config = json.loads((out / "config.json").read_text())
    del config["data"]
    (out / "config.json").write_text(json.dumps(config))
    assert run(folder, out, resume=True).accuracy >= 0


def test_it_is_said_where_a_run_goes_on_and_that_there_was_none(begun, image_folder, tmp_path, capsys):
    folder, out = begun
    run(folder, out, resume=True, progress=True)
    assert "going on after epoch 2 of stage classifier" in capsys.readouterr().err
    run(folder, tmp_path / "typo", resume=True, progress=True)
    assert "nothing to go on with" in capsys.readouterr().err
    assert Path(tmp_path / "typo" / "result.json").exists()
