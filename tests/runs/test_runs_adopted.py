"""Models of timm and transformers, random and tiny, as teachers and as students of any classes."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from refilled.errors import UserError
from refilled.models import load, read_network

pytestmark = pytest.mark.usefixtures("working_torchvision")

DATA = ["cat", "dog", "owl", "emu"]
RELATIONS = {
    "same": (["cat", "dog", "emu", "owl"], 1.0),
    "disjoint": (["yak", "gnu", "elk"], 0.0),
    "shared": (["Dog", "yak", "CAT", "gnu", "elk"], 0.5),
}


def timm_model(classes):
    import timm

    torch.manual_seed(3)
    model = timm.create_model("test_resnet", pretrained=False, num_classes=len(classes))
    save_file(model.state_dict(), "model.safetensors", metadata={"classes": json.dumps(classes)})
    Path("model.json").write_text(
        json.dumps({"input_size": [3, 32, 32], "mean": [0.2] * 3, "std": [0.4] * 3})
    )
    return "timm:test_resnet@model.safetensors"


def hf_model(classes):
    import transformers

    torch.manual_seed(4)
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=16,
        patch_size=8,
        id2label=dict(enumerate(classes)),
    )
    transformers.AutoModelForImageClassification.from_config(config).save_pretrained("model")
    processor = {"size": {"height": 16, "width": 16}, "image_mean": [0.5] * 3, "image_std": [0.3] * 3}
    Path("model/preprocessor_config.json").write_text(json.dumps(processor))
    return "hf:model"


def test_what_is_to_know_of_a_teacher_is_told_once(tiny, image_folder, capsys):
    """Here that its file names no classes."""
    spec = timm_model(["cat", "dog"])
    save_file(load_file("model.safetensors"), "model.safetensors")
    tiny(spec, "wrn-10-1", image_folder(DATA), progress=True)
    assert " ".join(capsys.readouterr().err.split()).count("model.safetensors names no classes") == 1


def headless(make):
    """The same without its classifier, as self-supervised models are published."""
    spec = make(["cat", "dog"])
    folder = Path("model") if spec.startswith("hf:") else Path(".")
    weights = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in weights.items() if not name.startswith(("fc.", "classifier."))}
    assert len(kept) == len(weights) - 2
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return spec


@pytest.mark.parametrize("method", ["refilled", "refilled-few", "rkd", "sskd", "crd"])
@pytest.mark.parametrize("make", [timm_model, hf_model])
def test_a_teacher_that_knows_no_classes(tiny, image_folder, make, method):
    result = tiny(headless(make), "wrn-10-1", image_folder(DATA), method)
    assert result.overlap == 0.0
    assert 0 <= result.teacher_ncm <= 1
    assert sorted(result.student.classes) == sorted(DATA)
    assert result.student.has_head


@pytest.mark.parametrize("make", [timm_model, hf_model])
def test_a_teacher_that_knows_no_classes_is_fine_tuned(tiny, image_folder, make):
    spec = headless(make)
    result = tiny(spec, spec, image_folder(DATA), "fine-tune")
    assert result.student.head.bias.shape == (len(DATA),)


def test_what_a_teacher_without_classes_cannot_do_is_refused(tiny, image_folder):
    spec, photos = headless(timm_model), image_folder(DATA)
    with pytest.raises(
        UserError, match=r"weight=head asks how sure the teacher's classifier is, and timm:.*weight=pl"
    ):
        tiny(spec, "wrn-10-1", photos, "refilled-two-stages")
    assert tiny(spec, "wrn-10-1", photos, "refilled-two-stages", weight="pl").overlap == 0.0
    with pytest.raises(UserError, match="has no head whose classes could be kept"):
        tiny(spec, "wrn-10-1", photos, keep_teacher_classes=True)
    with pytest.raises(UserError, match="kd needs a teacher of the same classes: only the student needs cat"):
        tiny(spec, "wrn-10-1", photos, "kd")


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("make", [timm_model, hf_model])
def test_as_teacher(tiny, image_folder, make, relation):
    known, overlap = RELATIONS[relation]
    photos = image_folder(DATA)
    spec = make(known)
    guide = load(spec)
    assert list(guide.classes) == known
    result = tiny(spec, "wrn-10-1", photos, out="mine")
    assert result.overlap == overlap
    assert sorted(result.student.classes) == sorted(DATA)
    assert 0 <= result.teacher_ncm <= 1
    assert json.loads(Path("mine/config.json").read_text())["run"]["teacher"] == spec
    losses = [json.loads(line) for line in Path("mine/metrics.jsonl").read_text().splitlines()]
    assert losses[0]["loss/comparison"] > 0
    assert losses[1]["loss/imitation"] > 0


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("make", [timm_model, hf_model])
def test_as_student(tiny, teacher, image_folder, make, relation):
    """The teacher is one of ours; the student's own head knows the teacher's classes."""
    known, overlap = RELATIONS[relation]
    photos = image_folder(DATA)
    guide = teacher(known)
    spec = make(sorted(known))
    fresh = load(spec, sorted(DATA))
    result = tiny(guide, spec, photos, out="mine")
    assert result.overlap == overlap
    assert list(result.student.classes) == sorted(DATA)
    assert (relation == "same") == (result.student.notes == [])
    assert result.student.preprocess == fresh.preprocess
    moved = [not torch.equal(a, b) for a, b in zip(fresh.parameters(), result.student.parameters())]
    assert sum(moved) > len(moved) / 2

    Path("model.safetensors").unlink(missing_ok=True)  # a run folder stands alone
    pixels = torch.rand(3, 3, 8, 8)
    with torch.no_grad():
        again, wanted = read_network("mine")(pixels)[1], result.student(pixels)[1]
    assert torch.allclose(again, wanted, atol=1e-5)  # another memory layout rounds differently


@pytest.mark.parametrize("make", [timm_model, hf_model])
def test_such_a_student_teaches_in_turn(tiny, image_folder, make):
    photos = image_folder(DATA)
    tiny(None, make(["x", "y"]), photos, "student", "first")
    assert tiny("first", "convnet-1", photos, "kd").overlap == 1.0


def first_rate(folder) -> tuple[float, float]:
    """As the run describes it, and as it was in the first of two epochs of one stage (a cosine's half)."""
    told = json.loads(Path(folder, "config.json").read_text())["run"]["settings"]["train"]["lr"]
    used = json.loads(Path(folder, "metrics.jsonl").read_text().splitlines()[-1])["lr"]
    return told, used


@pytest.mark.parametrize("make", [timm_model, hf_model])
def test_trained_weights_are_trained_gently(tiny, image_folder, make, capsys):
    photos = image_folder(DATA)
    tiny(None, make(["x", "y"]), photos, "student", "gently", progress=True)
    assert "starts from trained weights: learning rate 0.01 (--lr)" in capsys.readouterr().err
    tiny(None, make(["x", "y"]), photos, "student", "asked", lr=0.05)
    tiny(None, "timm:test_resnet@random", photos, "student", "random", image_size=32)
    tiny(None, "wrn-10-1", photos, "student", "ours", progress=True)
    assert "trained weights" not in capsys.readouterr().err
    told = {name: first_rate(name)[0] for name in ("gently", "asked", "random", "ours")}
    assert told == {"gently": 0.01, "asked": 0.05, "random": 0.1, "ours": 0.1}
    assert first_rate("ours")[1] == pytest.approx(10 * first_rate("gently")[1])


@pytest.mark.parametrize("method", ["fine-tune", "ewc"])
def test_so_are_those_of_the_teacher(tiny, teacher, image_folder, method):
    settings = {"keep_teacher_classes": True, "keep_weight": 0.0} if method == "ewc" else {}
    tiny(teacher(["x", "y"]), "wrn-10-1", image_folder(DATA), method, "mine", **settings)
    assert first_rate("mine")[0] == 0.01


def test_a_network_that_is_given_tells_by_its_mode(tiny, image_folder):
    photos = image_folder(DATA)
    first = tiny(None, load("wrn-10-1", sorted(DATA), image_size=8), photos, "student", "first")
    assert first_rate("first")[0] == 0.1
    tiny(None, first.student, photos, "student", "second")
    assert first_rate("second")[0] == 0.01


def test_a_run_that_has_begun_keeps_its_rate(tiny, teacher, image_folder):
    """It may have begun when the default was another."""
    known, photos = teacher(["x", "y"]), image_folder(DATA)
    tiny(known, "wrn-10-1", photos, "fine-tune", "mine", lr=0.1)
    Path("mine/result.json").unlink()
    tiny(known, "wrn-10-1", photos, "fine-tune", "mine", resume=True)
    assert first_rate("mine")[0] == 0.1
    with pytest.raises(UserError, match=r"lr was 0.1, is now 0.01"):
        tiny(known, "wrn-10-1", photos, "fine-tune", "mine", resume=True, lr=0.01)
