"""Runs that have images without labels, on folders of tiny images."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from refilled import UserError
from refilled.data import TensorPixels, open_data, open_unlabelled
from refilled.runs import DataSettings, compare, prepare


@pytest.fixture
def world(teacher, image_folder):
    """Data, a teacher of partly other classes, and a folder of other images."""
    photos = image_folder(["cat", "dog", "owl"])
    image_folder(["emu", "yak"], name="more")
    return teacher(["dog", "owl", "emu", "yak"]), photos


def run(tiny, world, out=None, method="refilled-few", **settings):
    return tiny(world[0], "wrn-10-1", world[1], method, out, unlabelled="more", **settings)


def facts(folder):
    return json.loads(Path(folder, "config.json").read_text())["data"]


@pytest.mark.parametrize("method", ["refilled", "refilled-few"])
def test_a_run_with_them(tiny, world, capsys, method):
    result = run(tiny, world, "mine", method, progress=True, unlabelled_each=2, mixtures=True)
    assert result.per_class.keys() == {"cat", "dog", "owl"}
    count = sum(1 for _ in Path("more").rglob("*.png"))
    assert f"beside them {count} images without labels, 16 to a batch" in " ".join(
        capsys.readouterr().err.split()
    )
    assert facts("mine")["images"]["unlabelled"] == count


def test_they_change_what_is_learned(tiny, world):
    with_them, without = (
        run(tiny, world),
        tiny(world[0], "wrn-10-1", world[1], "refilled-few"),
    )
    first, second = (r.student.state_dict()["stem.weight"] for r in (with_them, without))
    assert not first.equal(second)


def test_fixed_views_and_streaming(tiny, world):
    looked_up = run(tiny, world, views=2)
    streamed = run(tiny, world, views=2, pixels="stream")
    for name, weights in looked_up.student.state_dict().items():
        assert weights.allclose(streamed.student.state_dict()[name], atol=1e-4), name


def test_test_images_among_them_are_named(tiny, world, capsys):
    Path("pile").mkdir()
    for number in range(3):
        pixels = np.random.default_rng(1000 + number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(f"pile/{number}.png")

    def said():
        tiny(world[0], "wrn-10-1", world[1], "refilled-few", unlabelled="pile", progress=True)
        return capsys.readouterr().err

    assert "the accuracy will flatter" not in said()
    for number, path in enumerate(open_data(world[1]).test.pixels.paths[:2]):
        shutil.copy(path, f"pile/copy{number}.png")
    shutil.copy(open_data(world[1]).val.pixels.paths[0], "pile/copy.png")
    found = said()
    assert "2 of the images without labels are test images too" in found
    assert "1 of the images without labels is a validation image too" in found


def test_the_teachers_classes_may_be_kept(tiny, world):
    result = run(tiny, world, keep_teacher_classes=True)
    assert set(result.student.classes) == {"cat", "dog", "owl", "emu", "yak"}


def test_classes_of_the_data_itself(tiny, world):
    settings = {"classes": "cat,dog", "unlabelled_classes": "owl", "val_fraction": 0.0}
    result = tiny(world[0], "wrn-10-1", world[1], "refilled-few", "mine", **settings)
    assert set(result.per_class) == {"cat", "dog"}
    owls = open_data(world[1], classes="cat,owl", val_fraction=0.0).train.counts()[1]
    assert facts("mine")["images"]["unlabelled"] == owls


def test_what_goes_on_must_find_the_same(tiny, world):
    run(tiny, world, "mine")
    Path("mine/result.json").unlink()
    shutil.rmtree("more/yak")
    with pytest.raises(UserError, match=r"it had \d+ unlabelled images, and has \d+"):
        run(tiny, world, "mine", resume=True)


def test_data_that_is_open_brings_its_own(tiny, world):
    opened = replace(open_data(world[1]), unlabelled=open_unlabelled("more", world[1]))
    found = tiny(world[0], "wrn-10-1", opened, "refilled-few").student.state_dict()
    for name, weights in run(tiny, world).student.state_dict().items():
        assert weights.equal(found[name]), name
    chosen = {"epochs": 2, "batch_size": 8, "progress": False, "device": "cpu"}
    compare(world[0], "wrn-10-1", opened, "refilled-few", **chosen)  # the student alone does without them


def test_what_is_not_needed_may_be_spelt_out(tiny, world):
    usual = {"unlabelled_each": 4, "imitation_unlabelled": 30.0}
    tiny(world[0], "wrn-10-1", world[1], "refilled-few", **usual)


def test_open_data_has_a_say_in_how_many_are_seen_too(tiny, world):
    opened = replace(open_data(world[1]), unlabelled=open_unlabelled("more", world[1]))
    found = tiny(world[0], "wrn-10-1", opened, "refilled-few", unlabelled_each=1).student.state_dict()
    wanted = run(tiny, world, unlabelled_each=1).student.state_dict()
    assert all(weights.equal(found[name]) for name, weights in wanted.items())


def test_open_data_that_has_lost_them_is_not_gone_on_with(tiny, world):
    opened = open_data(world[1])
    with_them = replace(opened, unlabelled=open_unlabelled(Path("more"), world[1]))
    tiny(world[0], "wrn-10-1", with_them, "refilled-few", "mine")
    Path("mine/result.json").unlink()
    with pytest.raises(UserError, match=r"it had \d+ unlabelled images, and has 0"):
        tiny(world[0], "wrn-10-1", opened, "refilled-few", "mine", resume=True)


def test_a_path_is_as_good_as_its_name(tiny, world):
    tiny(world[0], "wrn-10-1", world[1], "refilled-few", "mine", unlabelled=Path("more"))
    assert "unlabelled" in facts("mine")["images"]


def test_streaming_is_for_what_are_files(tiny, teacher, image_folder):
    """What is in memory stays there, whichever of the two it is, and the other is streamed."""
    photos, digits = open_data(image_folder(["cat", "dog"])), open_data("digits", classes="0:3", shots=4)
    in_memory = TensorPixels(torch.randint(0, 256, (9, 3, 8, 8), dtype=torch.uint8))
    others = replace(photos.train, pixels=in_memory, labels=torch.zeros(9, dtype=torch.int64))
    known = teacher(["emu", "yak"])
    tiny(known, "wrn-10-1", replace(photos, unlabelled=others), "refilled-few", pixels="stream")
    parts = {
        name: replace(part, pixels=TensorPixels(part.pixels.load(8)[0]))
        for name, part in (("train", photos.train), ("val", photos.val), ("test", photos.test))
    }
    tiny(
        known, "wrn-10-1", replace(photos, unlabelled=photos.train, **parts), "refilled-few", pixels="stream"
    )
    with pytest.raises(UserError, match="is in memory already"):
        tiny(known, "wrn-10-1", digits, "refilled-few", pixels="stream")


def test_a_comparison_gives_them_to_the_one_with_a_teacher(world):
    verdict = compare(
        world[0], "wrn-10-1", world[1], "refilled-few", "mine", seeds=2, unlabelled="more", unlabelled_each=1,
        epochs=2, batch_size=8, progress=False, device="cpu",
    )  # fmt: skip
    assert len(verdict.differences) == 2
    assert "unlabelled" in facts("mine")["images"]
    assert "unlabelled" not in facts("mine/seeds/student-seed0")["images"]


def test_what_is_refused(tiny, world, image_folder):
    with pytest.raises(UserError, match="method rkd has no use for images without labels"):
        run(tiny, world, method="rkd")
    with pytest.raises(UserError, match="imitation_unlabelled is 0"):
        run(tiny, world, imitation_unlabelled=0.0)
    with pytest.raises(UserError, match="imitation_unlabelled does nothing without"):
        tiny(world[0], "wrn-10-1", world[1], "refilled-few", imitation_unlabelled=3.0)
    with pytest.raises(UserError, match="head_unlabelled does nothing without"):
        tiny(world[0], "wrn-10-1", world[1], "refilled-few", head_unlabelled=1.0)
    with pytest.raises(UserError, match=r"fade=0\.5 does nothing in refilled-few while strength"):
        tiny(world[0], "wrn-10-1", world[1], "refilled-few", fade=0.5, imitation=0.0, strength=0.0)
    with pytest.raises(UserError, match="unlabelled_each does nothing without"):
        tiny(world[0], "wrn-10-1", world[1], "refilled-few", unlabelled_each=3)
    with pytest.raises(UserError, match="unlabelled_each"):
        run(tiny, world, unlabelled_each=0)
    with pytest.raises(UserError, match="unlabelled is empty"):
        tiny(world[0], "wrn-10-1", world[1], "refilled-few", unlabelled="")
    with pytest.raises(UserError, match="have 3 channels, those without labels 1"):
        tiny(world[0], "wrn-10-1", world[1], "refilled-few", unlabelled="digits")
    gray = replace(open_data(world[1]), unlabelled=open_unlabelled("digits"))
    with pytest.raises(UserError, match="have 3 channels, those without labels 1"):
        tiny(world[0], "wrn-10-1", gray, "refilled-few")
    with pytest.raises(UserError, match="the data is open already; give it its images without labels too"):
        tiny(world[0], "wrn-10-1", open_data(world[1]), "refilled-few", unlabelled_classes="cat")


def test_the_data_are_divided_for_images_without_labels_as_for_the_others(monkeypatch, world):
    """Or some of the student's own test images would be among them."""
    asked = {}
    monkeypatch.setattr(prepare, "open_unlabelled", lambda *given, **how: asked.update(how))
    settings = DataSettings(
        unlabelled_classes="owl", split_seed=3, val_fraction=0.3, test_fraction=0.4, class_order="reversed",
        skip_bad_images=True,
    )  # fmt: skip
    prepare.read_unlabelled(str(world[1]), settings, open_data(world[1]))
    assert asked == {
        "classes": "owl", "class_order": "reversed", "split_seed": 3, "val_fraction": 0.3,
        "test_fraction": 0.4, "skip_bad_images": True,
    }  # fmt: skip
