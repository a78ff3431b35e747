"""A student that keeps its teacher's classes: made from two folders with partly equal class names."""

import json
from pathlib import Path

import pytest
import torch

from refilled import load
from refilled.errors import UserError
from refilled.runs import compare, evaluate


@pytest.mark.parametrize("method", ["refilled", "rkd", "student"])
def test_the_student_predicts_all_classes_of_both(tiny, teacher, image_folder, method):
    known = teacher(["cat", "dog", "elk"])
    photos = image_folder(["Dog", "fox"])
    result = tiny(known, "convnet-1", photos, method, "mine", keep_teacher_classes=True, epochs=4)
    assert list(result.student.classes) == ["cat", "dog", "elk", "fox"]
    again = load("run:mine")
    assert list(again.classes) == ["cat", "dog", "elk", "fox"]
    assert again(torch.rand(2, 3, 8, 8))[1].shape == (2, 4)
    assert not again.head.bias.any()
    lengths = again.head.weight.norm(dim=1)
    assert torch.allclose(lengths, lengths.mean().expand(4), rtol=1e-4)
    assert set(result.per_class) == {"cat", "dog", "elk", "fox"}
    assert result.per_class["cat"] is None  # no test images of it here
    assert result.overlap == 0.5
    # the old classes are judged where their images are
    old = evaluate("mine", "teacher-photos")
    assert old.left_out == ()
    assert set(old.per_class) == {"cat", "dog", "elk"}
    new = evaluate("mine", photos)
    assert new.accuracy == pytest.approx(result.accuracy)


def test_without_calibration_the_head_stays_as_it_was_learned(tiny, teacher, image_folder):
    result = tiny(
        teacher(["a", "b"]),
        "convnet-1",
        image_folder(["c", "d", "e"]),
        keep_teacher_classes=True,
        calibrate=False,
    )
    assert result.student.head.bias.any()
    assert result.student.head.weight[:2].mean(dim=0).abs().max() > 1e-3


def test_old_and_new_classes_are_brought_to_one_level_where_all_are_new(tiny, teacher, image_folder):
    known, photos = teacher(["a", "b"]), image_folder(["c", "d", "e"])

    def is_levelled(**settings):
        head = tiny(known, "convnet-1", photos, keep_teacher_classes=True, **settings).student.head
        centred = all(part.mean(dim=0).abs().max() < 1e-5 for part in (head.weight[:2], head.weight[2:]))
        assert centred != (not head.bias.any()), "one way or the other"
        return centred

    assert is_levelled(method="refilled-two-stages")
    assert is_levelled(method="refilled-few")
    assert not is_levelled(method="refilled-emb")
    assert not is_levelled(method="student")
    assert not is_levelled(method="refilled-two-stages", keep_level=False)
    assert not is_levelled(method="refilled-few", strength=0.0)
    assert not is_levelled(method="refilled")
    assert is_levelled(method="student", keep_level=True)


def test_an_interrupted_run_goes_on(tiny, teacher, image_folder, monkeypatch):
    known, photos = teacher(["a", "b", "c"]), image_folder(["c", "d"])
    whole = tiny(known, "convnet-1", photos, out="whole", keep_teacher_classes=True, epochs=4)

    class Stop(Exception):
        pass

    import refilled.training.loop as loop

    save, saved = loop.save_checkpoint, []

    def stop(*arguments):
        save(*arguments)
        saved.append(1)
        if len(saved) == 3:
            raise Stop

    settings = {"keep_teacher_classes": True, "epochs": 4, "checkpoint_seconds": 0.0}
    monkeypatch.setattr(loop, "save_checkpoint", stop)
    with pytest.raises(Stop):
        tiny(known, "convnet-1", photos, out="cut", **settings)
    monkeypatch.setattr(loop, "save_checkpoint", save)
    resumed = tiny(known, "convnet-1", photos, out="cut", resume=True, **settings)
    for a, b in zip(whole.student.state_dict().values(), resumed.student.state_dict().values()):
        assert torch.equal(a, b)


def test_what_cannot_be_kept_is_refused_before_any_training(tiny, teacher, image_folder):
    photos = image_folder(["c", "d"])
    with pytest.raises(UserError, match="--keep-teacher-classes needs a teacher"):
        tiny(None, "convnet-1", photos, "student", keep_teacher_classes=True)
    with pytest.raises(UserError, match="method at cannot keep"):
        tiny(teacher(["a", "b"]), "convnet-1", photos, "at", "out", keep_teacher_classes=True)
    assert not Path("out").exists()


def test_a_comparison_gives_the_student_alone_the_same_classes(teacher, image_folder):
    verdict = compare(
        teacher(["a", "b"]), "convnet-1", image_folder(["b", "c"]), "refilled", "both",
        epochs=2, batch_size=8, progress=False, device="cpu", keep_teacher_classes=True,
    )  # fmt: skip
    assert list(verdict.alone[0].student.classes) == ["a", "b", "c"]
    config = json.loads(Path("both/config.json").read_text())["run"]["settings"]["train"]
    assert config["keep_teacher_classes"] is True
    assert verdict.rows()[1][0] == "student that only keeps"  # the teacher taught it the old ones
