"""One run from beginning to end, on folders of tiny images."""

import copy
import json
import os
from pathlib import Path

import pytest
import torch

import refilled
from refilled import UserError
from refilled.data import open_data
from refilled.methods import METHODS
from refilled.models import load, read_network


def metrics(folder):
    return [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]


def test_result_and_run_folder(tiny, teacher, image_folder):
    photos = image_folder(["cat", "dog", "owl"])
    result = tiny(teacher(["dog", "owl", "emu", "yak"]), "wrn-10-1", photos, out="mine", seed=3)
    assert (result.method, result.seed, result.epochs, result.out) == ("refilled", 3, 2, "mine")
    assert result.test_images == 6
    assert result.per_class.keys() == {"cat", "dog", "owl"}
    assert sum(result.per_class.values()) / 3 == pytest.approx(result.accuracy)
    for share in (result.accuracy, result.ncm, result.one_nn, result.val_accuracy, result.teacher_ncm):
        assert 0 <= share <= 1
    assert result.top5 is None
    assert result.overlap == pytest.approx(2 / 3)
    assert result.seconds > 0
    assert not result.student.training
    assert list(result.student.classes) == ["cat", "dog", "owl"]

    files = {str(path.relative_to("mine")) for path in Path("mine").rglob("*") if path.is_file()}
    assert files == {
        "config.json",
        "metrics.jsonl",
        "checkpoint/last.safetensors",
        "student.safetensors",
        "student.json",
        "result.json",
    }
    assert json.loads(Path("mine/result.json").read_text()) == result.to_json()
    assert [(r["stage"], r["epoch"]) for r in metrics("mine")] == [("embedding", 1), ("classifier", 1)]
    config = json.loads(Path("mine/config.json").read_text())["run"]
    assert (config["method"], config["teacher"], config["data"]) == ("refilled", "teacher", "photos")
    assert config["settings"]["train"]["seed"] == 3


def test_the_saved_student_is_the_returned_one(tiny, teacher, image_folder):
    result = tiny(teacher(["a", "b"]), "convnet-1", image_folder(["c", "d"]), out="mine")
    pixels = torch.rand(5, 3, 8, 8)
    with torch.no_grad():
        again, wanted = refilled.load("run:mine")(pixels)[1], result.student(pixels)[1]
    assert torch.allclose(again, wanted, atol=1e-5)  # another memory layout rounds differently


def test_nothing_is_written_without_out(tiny, image_folder, snapshot):
    photos = image_folder(["a", "b"])
    before = snapshot()
    result = tiny(None, "wrn-10-1", photos, "student")
    assert result.out is None
    assert snapshot() == before


def test_same_seed_same_student_and_other_seed_another(tiny, teacher, image_folder):
    known, photos = teacher(["a", "b"]), image_folder(["c", "d"])
    first, again, other = (tiny(known, "wrn-10-1", photos, seed=seed).student for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters()))
    assert not torch.equal(first.head.weight, other.head.weight)


def test_the_teacher_is_left_as_it_was(tiny, teacher, image_folder):
    guide = load(teacher(["a", "b"]))
    before = copy.deepcopy(guide.state_dict())
    tiny(guide, "wrn-10-1", image_folder(["c", "d"]))
    assert all(torch.equal(value, guide.state_dict()[name]) for name, value in before.items())


def test_a_network_that_taught_can_be_a_student_later(tiny, image_folder):
    photos = image_folder(["a", "b"])
    first = tiny(None, "wrn-10-1", photos, "student").student
    second = tiny(first, "wrn-10-1", photos).student
    before = copy.deepcopy(first.state_dict())
    result = tiny(second, first, photos)
    assert result.student is first
    assert not torch.equal(before["head.weight"], first.head.weight)


def test_one_network_is_not_both_teacher_and_student(tiny, image_folder):
    photos = image_folder(["a", "b"])
    both = tiny(None, "wrn-10-1", photos, "student").student
    with pytest.raises(UserError):
        tiny(both, both, photos)


def test_a_teacher_of_another_size_and_normalisation(tiny, teacher, image_folder):
    """The same pixels go to both, and each prepares them for itself."""
    known = teacher(["a", "b"], sides=16)
    guide = load(known)
    result = tiny(known, "convnet-1", image_folder(["c", "d"], sides=8), out="mine")
    assert guide.preprocess.size == 16
    assert result.student.preprocess.size == 8
    assert guide.preprocess.mean != pytest.approx(result.student.preprocess.mean, abs=1e-3)


def test_the_data_decides_how_a_fresh_student_normalises(tiny, image_folder):
    photos = image_folder(["a", "b"])
    student = tiny(None, "wrn-10-1", photos, "student").student
    splits = open_data(photos)
    pixels = splits.train.pixels.load(8)[0].float() / 255
    assert student.preprocess.mean == pytest.approx(pixels.mean(dim=(0, 2, 3)).tolist(), abs=1e-3)
    assert student.preprocess.std == pytest.approx(pixels.std(dim=(0, 2, 3)).tolist(), abs=1e-2)


def test_student_given_as_a_network(tiny, teacher, image_folder):
    photos = image_folder(["c", "d"])
    student = load("convnet-1", ["c", "d"], image_size=8)
    before = copy.deepcopy(student.state_dict())
    result = tiny(teacher(["a", "b"]), student, photos, out="mine")
    assert result.student is student
    assert not torch.equal(before["head.weight"], student.head.weight)
    with pytest.raises(UserError, match=r"student knows .*x, y.* data holds .*c, d"):
        tiny("teacher", load("convnet-1", ["x", "y"], image_size=8), photos)


def test_student_that_goes_on_from_a_run(tiny, teacher, image_folder):
    known = teacher(["a", "b"])
    result = tiny(known, f"run:{known}", image_folder(["c", "d"]))
    assert list(result.student.classes) == ["c", "d"]
    assert any("head is new" in note for note in result.student.notes)


def test_gray_teacher_and_colour_images_are_refused_with_both_named(tiny, image_folder):
    pytest.importorskip("sklearn")
    photos = image_folder(["c", "d"])
    tiny(None, "wrn-10-1", "digits", "student", "gray", shots=2, epochs=1)
    with pytest.raises(UserError, match="channel"):
        tiny("gray", "wrn-10-1", photos)


def test_colour_teacher_of_gray_images(tiny, teacher):
    pytest.importorskip("sklearn")
    result = tiny(teacher(["a", "b"]), "wrn-10-1", "digits", shots=3)
    assert result.student.preprocess.channels == 1
    assert result.overlap == 0


def test_shots_and_validation(tiny, image_folder):
    photos = image_folder(["a", "b"])
    tiny(None, "wrn-10-1", photos, "student", "few", shots=2)
    assert json.loads(Path("few/config.json").read_text())["run"]["settings"]["data"]["shots"] == 2
    result = tiny(None, "wrn-10-1", photos, "student", "none", val_fraction=0)
    assert result.val_accuracy is None
    assert not any(name.startswith("val/") for record in metrics("none") for name in record)
    assert any(name.startswith("val/") for record in metrics("few") for name in record)


@pytest.mark.parametrize("shots", [1, 0, 50])
def test_shots_that_cannot_be_had(tiny, image_folder, shots):
    with pytest.raises(UserError, match=r"at least|shots"):
        tiny(None, "wrn-10-1", image_folder(["a", "b"]), "student", shots=shots)


def test_settings_of_the_data_count_when_it_was_opened_already(tiny, image_folder):
    """A setting that cannot be kept is refused, or kept; never passed over in silence."""
    splits = open_data(image_folder(["a", "b", "c"]))
    try:
        result = tiny(None, "wrn-10-1", splits, "student", classes="0:2")
    except UserError:
        return
    assert list(result.student.classes) == ["a", "b"]


def test_classes_in_the_order_that_is_asked_for(tiny, image_folder):
    result = tiny(None, "wrn-10-1", image_folder(["a", "b", "c"]), "student", classes="c,a")
    assert list(result.student.classes) == ["c", "a"]
    assert result.test_images == 4


def test_a_class_without_test_images_has_no_share(tiny, image_folder):
    image_folder(["a", "b", "c"], name="photos/train")
    photos = image_folder(["a", "b"], name="photos/test").parent
    result = tiny(None, "wrn-10-1", photos, "student", "mine", val_fraction=0)
    assert result.per_class["c"] is None

    def refuse(text):
        raise AssertionError(f"result.json holds {text}, which is no JSON")

    json.loads(Path("mine/result.json").read_text(), parse_constant=refuse)


@pytest.mark.parametrize("name", METHODS)
def test_stages_add_up_to_the_epochs(name, teacher, tiny, image_folder):
    known, photos = teacher(["a", "b"]), image_folder(["a", "b"])
    for epochs in (2, 3):
        out = f"{name}-{epochs}"
        tiny(
            known,
            "wrn-10-1" if name in ("fine-tune", "ewc") else "convnet-1",
            photos,
            name,
            out,
            epochs=epochs,
        )
        assert len(metrics(out)) == epochs


@pytest.mark.parametrize("epochs", [2, 3, 7, 10, 101])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_two_stages_share_the_epochs(epochs, share):
    from refilled.methods.stage import share as divide

    first, second = divide(epochs, share)
    assert first + second == epochs
    assert min(first, second) >= 1


def test_a_method_with_a_teacher_needs_one(tiny, image_folder):
    with pytest.raises(UserError, match="method refilled needs a teacher"):
        tiny(None, "wrn-10-1", image_folder(["a", "b"]))


@pytest.mark.parametrize(
    "classes", [["größe", "猫 科", "É"], ["train", "bus", "car"], ["[bold] a", "[red]b", "c"]]
)
def test_names_of_every_kind(tiny, teacher, image_folder, classes):
    photos = image_folder(classes, name="my phötos")
    result = tiny(teacher(["a", "b"]), "convnet-1", photos, out="out folder/ü")
    assert sorted(read_network("out folder/ü").classes) == sorted(classes)
    assert result.overlap == 0


def test_class_names_that_are_no_unicode_do_not_cost_a_training(tiny, image_folder):
    """Old archives have names in other encodings; they are written down, or refused before training."""
    photos = image_folder(["a", "b"])
    os.rename(photos / "b", os.fsencode(photos) + b"/caf\xe9")
    try:
        tiny(None, "convnet-1", photos, "student", "mine")
    except UserError:
        assert not Path("mine").exists()
    else:
        assert len(read_network("mine").classes) == 2


def test_weights_that_are_no_numbers_are_never_a_result(tiny, image_folder):
    """The only step spoils the weights, after its loss was still a number."""
    photos = image_folder(["a", "b"])
    with pytest.raises(UserError, match=r"finite|became"):
        tiny(None, "wrn-10-1", photos, "student", lr=1e38, weight_decay=1e5, epochs=1, batch_size=64)


def test_images_of_different_sizes_and_formats(tiny, image_folder):
    result = tiny(None, "convnet-1", image_folder(["a", "b"], sides=[9, 13]), "student", image_size=10)
    assert result.student.preprocess.size == 10
