"""Evaluation of a finished run on its own data and on other data."""

import json
import os
from pathlib import Path

import pytest
import torch

from refilled import UserError, evaluate, evaluation


@pytest.fixture
def logits_seen(monkeypatch):
    """All logits that were predicted, in order."""
    seen, real = [], evaluation.predict

    def predict(*args, **kwargs):
        outputs = real(*args, **kwargs)
        seen.append(outputs.logits)
        return outputs

    monkeypatch.setattr(evaluation, "predict", predict)
    return seen


def test_it_says_what_the_run_said(tiny, image_folder):
    photos = image_folder(["a", "b", "c"], counts=10)
    result = tiny(None, "wrn-10-1", photos, "student", "mine", split_seed=3)
    found = evaluate("mine", photos)
    assert (found.part, found.images, found.left_out, found.skipped) == ("test", result.test_images, (), 0)
    assert found.accuracy == result.accuracy
    assert found.per_class == result.per_class
    assert evaluate("mine", photos, part="val").accuracy == result.val_accuracy
    assert evaluate("mine", photos, part="train").images == 30 - found.images - 3
    assert evaluate("mine", photos.resolve()).accuracy == result.accuracy


@pytest.mark.parametrize(
    ("sides", "setting", "of_teacher"),
    [
        (8, {}, 12),
        (8, {"image_size": 16}, 8),
        ([9, 13], {}, 8),
        ([9, 13], {"image_size": 16}, 8),
        ([9, 13], {}, 72),
    ],
)
def test_the_student_sees_the_very_pixels_that_the_run_measured(
    tiny, teacher, image_folder, logits_seen, sides, setting, of_teacher
):
    """Whatever size the run held its images in."""
    known = teacher(["x", "y"], sides=of_teacher, batch_size=4)
    photos = image_folder(["a", "b"], sides=sides)
    logits_seen.clear()
    tiny(known, "convnet-1", photos, "refilled-lkd", "mine", val_fraction=0, **setting)
    of_run = logits_seen[0]
    logits_seen.clear()
    evaluate("mine", photos)
    assert torch.allclose(logits_seen[0], of_run, atol=1e-4)


def test_classes_are_matched_by_name(tiny, image_folder):
    photos = image_folder(["a cat", "b dog", "c owl"])
    result = tiny(None, "wrn-10-1", photos, "student", "mine", epochs=6)
    assert result.accuracy > 0.4
    for old, new in (("a cat", "ZZ"), ("b dog", "B_Dog"), ("c owl", "A-Cat")):
        os.rename(photos / old, photos / f"tmp{new}")
    for new in ("ZZ", "B_Dog", "A-Cat"):  # owls under the name of cats; cats under a name that is unknown
        os.rename(photos / f"tmp{new}", photos / new)
    found = evaluate("mine", photos, part="train")
    assert found.left_out == ("ZZ",)
    assert set(found.per_class) == {"a cat", "b dog"}
    assert found.images == 10
    before = evaluate("mine", image_folder(["a cat", "b dog", "c owl"], name="again"), part="train")
    assert found.per_class["b dog"] == before.per_class["b dog"]
    assert found.per_class["a cat"] <= 1 - before.per_class["c owl"]


def test_reversed_order_gives_the_same_accuracy(tiny, image_folder):
    photos = image_folder(["a", "b", "c"])
    tiny(None, "wrn-10-1", photos, "student", "mine", classes="c,b,a", epochs=4)
    result = json.loads(Path("mine/result.json").read_text())
    found = evaluate("mine", photos)
    assert found.accuracy == result["accuracy"]
    assert found.per_class == result["per_class"]


def test_no_class_in_common(tiny, image_folder):
    tiny(None, "wrn-10-1", image_folder(["a", "b"]), "student", "mine")
    with pytest.raises(UserError, match="knows none of the 2 classes of other"):
        evaluate("mine", image_folder(["c", "d"], name="other"))


def test_parts(tiny, image_folder):
    photos = image_folder(["a", "b"])
    tiny(None, "wrn-10-1", photos, "student", "mine", val_fraction=0)
    with pytest.raises(UserError, match="has no val images"):
        evaluate("mine", photos, part="val")
    with pytest.raises(UserError, match="unknown part 'tset'; did you mean 'test'"):
        evaluate("mine", photos, part="tset")


def test_a_class_without_images_in_the_part_counts_nowhere(tiny, image_folder):
    tiny(None, "wrn-10-1", image_folder(["a", "b"]), "student", "mine")
    other = image_folder(["a", "b"], name="other", counts=[3, 9])  # too few of a for a validation part
    found = evaluate("mine", other, part="val")
    assert found.images == 1
    assert found.per_class.get("a") is None
    assert found.per_class["b"] in (0.0, 1.0)


def test_bad_images_are_named_or_skipped_and_counted(tiny, image_folder):
    photos = image_folder(["a", "b"])
    tiny(None, "wrn-10-1", photos, "student", "mine")
    for file in (photos / "a").iterdir():
        file.write_bytes(b"broken")
    with pytest.raises(UserError, match=r"cannot read photos/a/\d\.png"):
        evaluate("mine", photos)
    found = evaluate("mine", photos, skip_bad_images=True)
    assert found.skipped == 2
    assert found.images == 2


def test_folders_that_are_no_finished_run(tiny, image_folder):
    photos = image_folder(["a", "b"])
    for run in ("nowhere", photos):
        with pytest.raises(UserError, match="no run folder"):
            evaluate(run, photos)


def test_a_run_evaluates_after_it_was_moved(tiny, image_folder):
    photos = image_folder(["a", "b"])
    result = tiny(None, "wrn-10-1", photos, "student", "mine")
    Path("mine").rename("elsewhere")
    assert evaluate("elsewhere", photos).accuracy == result.accuracy
