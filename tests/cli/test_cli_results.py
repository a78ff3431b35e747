"""The command line: what a person reads at the end, and where the results are."""

import json
import os
import re
from pathlib import Path

import pytest

from .outcomes import TINY, refusal


def test_train_and_evaluate(command, image_folder):
    image_folder(["cat", "dog", "owl"])
    code, out, err = command("train", "photos", "--student", "convnet-1", *TINY, "--out", "runs/a b")
    assert code == 0
    assert re.fullmatch(r"test accuracy [\d.]+ % \(2 epochs, [\d.]+ s\), in runs/a b\n", out)
    assert "photos: 3 classes, 15 training, 3 validation, 6 test images of 8 pixels" in err
    assert "split 70/10/20 per class with split seed 0" in err
    accuracy = re.search(r"accuracy ([\d.]+) %", out)[1]
    code, out, err = command("evaluate", "runs/a b", "photos")
    assert (code, err) == (0, "")
    assert f"test: top-1 {accuracy} % of 6 images" in out
    assert "hardest classes: " in out
    assert "more are in other parts" not in out


def test_a_part_of_other_data_is_told_and_all_of_it_can_be_had(command, trained, image_folder):
    """Of images that the student has never seen a fifth would be few."""
    image_folder(["cat", "dog"], name="fresh")
    _, out, _ = command("evaluate", "teacher", "fresh")
    told = re.search(r"of (\d+) images\n(\d+) more are in other parts.*--part all takes every one", out)
    assert int(told[1]) + int(told[2]) == 16
    code, out, _ = command("evaluate", "teacher", "fresh", "--part", "all")
    assert code == 0
    assert re.search(r"all: top-1 [\d.]+ % of 16 images\n", out)
    assert "other parts" not in out
    for part in ("train", "test"):
        image_folder(["cat", "dog"], name=f"parts/{part}")
    assert "other parts" not in command("evaluate", "teacher", "parts")[1]  # they come divided
    image_folder(["cat", "dog"], name="one/train")
    assert "other parts" in command("evaluate", "teacher", "one")[1]


@pytest.mark.parametrize("name", ["photos", "./photos/", "folder:photos"])
def test_the_runs_own_data_are_known_however_they_are_written(command, trained, name):
    for part, is_told in (("test", False), ("val", False), ("train", True), ("all", True)):
        _, out, _ = command("evaluate", "teacher", name, "--part", part)
        assert "other parts" not in out
        assert ("the student has learned from images among these" in out) == is_told


def test_distill_without_comparison(distill):
    code, out, err = distill()
    assert code == 0
    assert "add --compare to see whether the teacher helped" in out
    assert "3 of 3 classes shared (100%)" in err


def test_the_student_alone_is_not_sent_to_a_comparison(distill):
    code, out, _ = distill("--method", "student")
    assert code == 0
    assert "--compare" not in out


def test_who_keeps_the_teachers_classes_is_told_how_they_are_judged(distill, image_folder):
    image_folder(["dog", "emu"], name="others")
    code, out, _ = distill("--keep-teacher-classes", data="others")
    assert code == 0
    assert "how well it knows the teacher's classes: refilled evaluate mine THEIR-IMAGES" in out


def test_an_out_among_the_data_is_refused(command, image_folder, snapshot):
    image_folder(["cat", "dog"])
    before = snapshot()
    for out in ("photos/run", "photos/cat/run"):
        said = refusal(command("train", "photos", "--student", "convnet-1", *TINY, "--out", out, "--resume"))
        assert said == f"{out} lies in photos and would be taken for a class of it; choose another --out"
    assert snapshot() == before
    image_folder(["cat", "dog"], name="parted/train")
    image_folder(["cat", "dog"], name="parted/test")
    said = refusal(command("train", "parted", "--student", "convnet-1", *TINY, "--out", "parted/test/run"))
    assert said.startswith("parted/test/run lies in parted/test and")
    for data, out in (("photos", "photos run"), ("photos", "photos/.runs/a"), ("parted", "parted/runs/a")):
        assert command("train", data, "--student", "convnet-1", *TINY, "--out", out)[0] == 0
    assert command("train", "photos", "--student", "convnet-1", *TINY, "--out", "again")[0] == 0


def test_one_epoch_is_one(command, image_folder):
    image_folder(["cat", "dog"])
    assert "(1 epoch, " in command("train", "photos", "--student", "convnet-1", *TINY, "--epochs", "1")[1]


def test_the_verdict(distill, image_folder):
    image_folder(["dog", "owl", "emu", "yak"], name="others")
    code, out, _ = distill("--compare", "--seeds", "2", data="others")
    assert code == 0
    spread = r"[\d.]+ ± [\d.]+ %"
    assert re.search(rf"refilled-few +{spread} +[\d.]+ s +2\b", out)
    assert re.search(rf"student alone +{spread} +[\d.]+ s +2\b", out)
    assert "The teacher knows 50 % of the student's classes" in out
    assert re.search(r"[+-][\d.]+ points \(95 % interval [+-][\d.]+ to [+-][\d.]+, 2 seeds\)", out)
    assert "student and verdict are in mine" in out
    verdict = json.loads(Path("mine/verdict.json").read_text())
    assert verdict["sentence"] in out
    assert verdict["overlap"] == 0.5


def test_the_student_alone_has_no_teacher_to_speak_of(distill):
    code, out, _ = distill("--method", "student", "--compare")
    assert code == 0 or out == ""
    assert "The teacher knows 0 %" not in out


def test_unknown_classes_and_bad_images_are_told(command, trained, image_folder):
    image_folder(["Cat", "D-O-G", "emu", "yak"], name="others")
    for file in Path("others/Cat").iterdir():
        file.write_bytes(b"broken")
    code, out, _ = command("evaluate", "teacher", "others", "--skip-bad-images")
    assert code == 0
    assert "2 classes are unknown to the student and left out: emu, yak" in out
    assert "2 images could not be read" in out
    assert "nan" not in out


@pytest.mark.parametrize("name", ["plain", "a b", "ü", "[x]", "[red]", "a[/]b"])
def test_names_are_printed_as_they_are(command, image_folder, name):
    """No name of a folder or class is taken for markup."""
    image_folder(["cat", f"{name} dog".replace("/", "")], name=name)
    code, out, _ = command("train", name, "--student", "convnet-1", *TINY, "--out", f"run {name}")
    assert code == 0
    assert f"in run {name}\n" in out
    code, out, _ = command("evaluate", f"run {name}", name)
    assert code == 0
    assert f"{name} dog".replace("/", "") in out


def test_a_teacher_that_is_called_like_a_model(distill):
    Path("teacher").rename("wrn-teacher")
    assert distill(teacher="wrn-teacher")[0] == 0
    Path("wrn-teacher").rename("wrn-16-2")
    assert distill(teacher="wrn-16-2", out="other")[0] == 0


def test_out_is_a_new_folder_when_none_is_given(command, image_folder):
    image_folder(["cat", "dog"], name="my photos")
    for _ in range(2):
        assert command("train", "my photos", "--student", "convnet-1", *TINY)[0] == 0
    assert sorted(os.listdir("runs")) == ["my-photos-convnet-1", "my-photos-convnet-1-2"]


def test_a_home_folder_is_found_for_out_as_it_is_for_data(command, image_folder, monkeypatch, tmp_path):
    """``--out=~/run`` reaches us as it is written: shells expand a tilde only at the start of a word."""
    image_folder(["cat", "dog"])
    monkeypatch.setenv("HOME", str(tmp_path))
    assert command("train", "~/photos", "--student", "convnet-1", *TINY, "--out=~/run")[0] == 0
    assert Path("run/student.json").exists()
