"""The command line: what will not do is refused in one line, before anything is written."""

import subprocess
import sys
from pathlib import Path

import pytest

from refilled.training import loop

from .outcomes import ENVIRONMENT, TINY, refusal


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--method", "refiled"), "unknown method 'refiled'; did you mean 'refilled'"),
        (("--set", "strenght=3"), "unknown setting of method refilled 'strenght'; did you mean 'strength'"),
        (("--set", "weight=haed"), "unknown value of weight 'haed'; did you mean 'head'"),
        (("--set", "strength"), "--set takes NAME=VALUE"),
        (("--set", "tau_teacher=0"), "tau_teacher"),
        (("--set", "max_impostors=0"), "max_impostors must be at least 1"),
        (("--classes", "cat,dgo"), "unknown class 'dgo'; did you mean 'dog'"),
        (("--classes", "70:20"), "70:20"),
        (("--classes", "2:1"), "2:1"),
        (("--classes", "0:9"), "0:9"),
        (("--classes", "cat"), "class"),
        (("--class-order", "nowhere"), "class order 'nowhere'"),
        (("--shots", "1"), "shots must be at least 2"),
        (("--shots", "99"), "has 5 training images and 99 shots were asked for"),
        (("--val-fraction", "0.9"), "must leave a part for training"),
        (("--epochs", "0"), "epochs must be at least 1, not 0"),
        (("--epochs", "1", "--method", "refilled"), "two stages needs at least 2 epochs"),
        (("--batch-size", "1"), "batch_size must be at least 2"),
        (("--validate-every", "0"), "validate_every must be at least 1"),
        (("--lr", "0"), "lr must be greater than 0"),
        (("--lr", "nan"), "lr must be"),
        (("--momentum", "-1"), "momentum"),
        (("--weight-decay", "-1"), "weight_decay"),
        (("--seed", str(2**70)), "seed"),
        (("--seeds", "0"), "--seeds must be at least 1, not 0"),
        (("--device", "nonsense"), "unknown device 'nonsense'"),
        (("--device", "meta"), "unknown device 'meta'"),
        (("--device", "hpu"), "unknown device 'hpu'"),
        (("--device", "gpu"), "device 'gpu' is called cuda here"),
        (("--device", "xla"), "unknown device 'xla'"),
        (("--image-size", "0"), "image_size must be at least"),
        (("--image-size", "-5"), "image_size must be at least"),
        (("--image-size", "200000"), "use a smaller --image-size"),
        (("--augment", "crp"), "unknown augmentation 'crp'; did you mean 'crop'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_refused_options(distill, snapshot, options, said):
    before = snapshot()
    line = refusal(distill(*options))
    assert said in line
    assert len(line) < 600
    assert snapshot() == before


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ({"data": "nowhere"}, "no such folder: nowhere"),
        ({"data": "digts"}, "did you mean 'digits'"),
        ({"teacher": "runs/nowhere"}, "there is no run folder runs/nowhere"),
        ({"teacher": "run:nowhere"}, "there is no run folder nowhere"),
        ({"teacher": "nowhere"}, "there is no run folder nowhere: unknown model 'nowhere'"),
        ({"teacher": "photos"}, "photos is no run folder"),
        ({"teacher": "wrn-16-2"}, "fresh weights"),
        ({"student": "wrn-16"}, "wrn-16: "),
        ({"student": "wnr-16-2"}, "unknown model 'wnr-16-2'; did you mean 'wrn-16-2'"),
        ({"out": "photos"}, "photos exists already"),
        ({"out": "teacher"}, "teacher exists already"),
        ({"out": "photos/cat/0.png"}, "is a file"),
        ({"out": "photos/cat/0.png/run"}, "photos/cat/0.png"),
    ],
    ids=lambda value: " ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_refused_models_data_and_folders(distill, snapshot, models, said):
    before = snapshot()
    assert said in refusal(distill(**models))
    assert snapshot() == before


def test_folders_of_images_that_will_not_do(distill, image_folder):
    Path("empty").mkdir()
    assert "empty is empty" in refusal(distill(data="empty"))
    Path("hollow/cat").mkdir(parents=True)
    assert "hollow has folders but no images" in refusal(distill(data="hollow"))
    image_folder(["cat", "dog"], name="single", counts=[1, 8])
    assert refusal(distill(data="single")) == "single/cat has 1 image; at least 2 are needed to compare"
    image_folder(["cat"], name="lonely")
    assert "only one class (cat)" in refusal(distill(data="lonely"))
    image_folder(["cat", "CAT_"], name="twins")
    assert "are one name" in refusal(distill(data="twins"))


def test_a_class_of_two_images_is_not_said_to_have_one(distill, image_folder):
    image_folder(["cat", "dog"], name="pair", counts=[2, 8])
    line = refusal(distill(data="pair"))
    assert "pair/cat" in line
    assert "has 1 image;" not in line


def test_an_existing_run_is_not_overwritten(distill, snapshot):
    assert distill()[0] == 0
    before = snapshot()
    assert "mine exists already; choose another folder" in refusal(distill())
    assert "lr was 0.1, is now 0.2" in refusal(distill("--resume", "--lr", "0.2"))
    code, out, err = distill("--resume")
    assert code == 0
    assert "mine is finished already" in err
    assert "test accuracy" in out
    assert snapshot() == before


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("nowhere", "photos"), "there is no run folder nowhere"),
        (("photos", "photos"), "photos is no run folder"),
        (("teacher", "nowhere"), "no such folder: nowhere"),
        (("teacher", "photos", "--part", "tset"), "unknown part 'tset'; did you mean 'test'"),
        (("teacher", "photos", "--device", "nonsense"), "unknown device 'nonsense'"),
        (("teacher", "strangers"), "knows none of the 2 classes of strangers"),
    ],
)
def test_refused_evaluations(command, trained, image_folder, argv, said):
    image_folder(["emu", "yak"], name="strangers")
    assert said in refusal(command("evaluate", *argv))


@pytest.mark.parametrize("option", ["--seeds", "--shots"])
def test_a_demo_of_nothing_is_refused_before_training(command, image_folder, option, monkeypatch):
    image_folder([])
    monkeypatch.setattr(loop, "_one_epoch", lambda *_: pytest.fail("training began"))
    line = refusal(command("demo", option, "0", "--out", "demo"))
    assert "at least 1" in line
    assert not Path("demo").exists()


def test_kd_of_other_classes(distill, image_folder):
    image_folder(["cat", "emu"], name="others")
    line = refusal(distill("--method", "kd", data="others"))
    assert "only the teacher knows dog, owl; only the student needs emu" in line


def test_resume_wants_to_know_what(command, image_folder):
    """Without --out there is nothing to go on with; a fresh run in silence would not be what was asked."""
    image_folder(["cat", "dog"])
    assert "--out" in refusal(command("train", "photos", "--student", "convnet-1", *TINY, "--resume"))


def test_python_dash_m(image_folder):
    """The real process: exit code, one line, no traceback."""
    image_folder([])
    found = subprocess.run(
        [sys.executable, "-m", "refilled", "train", "nowhere"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 2
    assert found.stdout == ""
    assert found.stderr.count("\n") == 1
    assert found.stderr.startswith("refilled: no such folder: nowhere")
