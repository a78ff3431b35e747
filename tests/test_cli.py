"""The command line: help, one-line errors, interruption, and what a person reads at the end."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from refilled import cli
from refilled.methods import METHODS
from refilled.training import loop

# A process of its own finds the package too, whatever its current folder is.
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(cli.__file__).resolve().parents[1])}
TINY = ("--epochs", "2", "--batch-size", "8", "--device", "cpu")


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


@pytest.fixture(scope="module")
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


def refusal(outcome):
    """The one line of a refusal: exit code 2, nothing on standard output, no traceback."""
    code, out, err = outcome
    assert code == 2
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("refilled: ")
    return line.removeprefix("refilled: ")


# --- help ---------------------------------------------------------------------------------------------

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


def test_help_lists_the_commands(command):
    code, out, _ = command("--help")
    assert code == 0
    assert all(name in out for name in ("demo", "train", "distill", "evaluate", "methods"))


def test_methods(command):
    code, out, err = command("methods")
    assert (code, err) == (0, "")
    for name, method in METHODS.items():
        assert f"{name}: {method.summary}" in out
    assert "    strength=2.0" in out
    assert "    weight=head" in out


@pytest.mark.parametrize("argv", [(), ("nonsense",), ("train",), ("train", "photos", "--epochs", "many")])
def test_what_cannot_be_parsed_exits_with_2(command, argv):
    code, _, err = command(*argv)
    assert code == 2
    assert "Traceback" not in err


# --- refusals -----------------------------------------------------------------------------------------


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
        (("--epochs", "1"), "two stages needs at least 2 epochs"),
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


def test_a_corrupt_image_is_named_or_skipped_and_counted(distill):
    for number in range(2):
        Path(f"photos/cat/{number}.png").write_bytes(b"broken")
    assert re.search(r"cannot read photos/cat/[01]\.png: .*--skip-bad-images", refusal(distill()))
    code, _, err = distill("--skip-bad-images")
    assert code == 0
    counts = [int(count) for count in re.findall(r"(\d+) \w+ images? could not be read", err)]
    assert sum(counts) == 2


def test_an_existing_run_is_not_overwritten(distill, snapshot):
    assert distill()[0] == 0
    before = snapshot()
    assert "mine exists already; choose another --out, or add --resume" in refusal(distill())
    assert "lr was 0.1, is now 0.2" in refusal(distill("--resume", "--lr", "0.2"))
    code, out, err = distill("--resume")
    assert code == 0
    assert "mine is finished already" in err
    assert "test accuracy" in out
    assert snapshot() == before


def test_damaged_students(distill, command):
    assert distill()[0] == 0
    weights = Path("mine/student.safetensors")
    whole = weights.read_bytes()
    for content in (whole[:200], b"", whole[:-8]):
        weights.write_bytes(content)
        assert "student.safetensors" in refusal(command("evaluate", "mine", "photos"))
        assert "student.safetensors" in refusal(distill(teacher="mine", out="other"))
    weights.write_bytes(Path("teacher/student.safetensors").read_bytes())
    assert "architecture" in refusal(command("evaluate", "mine", "photos"))
    weights.unlink()
    assert "student.safetensors" in refusal(command("evaluate", "mine", "photos"))


def test_a_truncated_checkpoint(distill):
    assert distill()[0] == 0
    Path("mine/result.json").unlink()  # as if it had stopped after its last checkpoint
    path = Path("mine/checkpoint/last.safetensors")
    path.write_bytes(path.read_bytes()[:150])
    code, _, err = distill("--resume")
    assert code == 2
    assert "Traceback" not in err
    assert re.match(r"refilled: mine/checkpoint/last\.safetensors is damaged", err.splitlines()[-1])


def test_a_checkpoint_of_other_tensors(distill):
    assert distill()[0] == 0
    Path("mine/result.json").unlink()
    path = Path("mine/checkpoint/last.safetensors")
    tensors = {name: value for name, value in load_file(path).items() if "head" not in name}
    save_file(tensors, path)
    code, _, err = distill("--resume")
    assert code == 2
    assert "last.safetensors" in err.splitlines()[-1]


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


# --- trouble while training ---------------------------------------------------------------------------


def test_a_loss_that_is_no_number(distill):
    code, out, err = distill("--lr", "1e30", "--epochs", "6", "--method", "refilled-lkd")
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    last = err.splitlines()[-1]
    assert re.match(r"refilled: loss term '(cross_entropy|local_kd)' became (nan|inf|-inf) in stage", last)
    assert re.search(r"epoch \d+, step \d+", last)
    assert not Path("mine/result.json").exists()


def test_the_last_good_checkpoint_is_kept(distill, monkeypatch):
    """The loss breaks in the second stage; the first one's checkpoint can still be resumed."""
    real = loop._check_finite

    def break_in_stage_2(recent, step, epoch, last):
        broken = step.stage.name == "classifier" and epoch == 1
        real(recent * float("nan") if broken else recent, step, epoch, last)

    monkeypatch.setattr(loop, "_check_finite", break_in_stage_2)
    code, _, err = distill("--epochs", "6")
    assert code == 2
    assert "loss term 'cross_entropy' became nan in stage 'classifier', epoch 2, step 1" in err
    assert "last good checkpoint is kept" in err
    good = load_file("mine/checkpoint/last.safetensors")
    assert all(bool(tensor.float().isfinite().all()) for tensor in good.values())
    monkeypatch.setattr(loop, "_check_finite", real)
    assert distill("--epochs", "6", "--resume")[0] == 0


def test_no_checkpoint_is_promised_where_there_is_none(distill):
    _, _, err = distill("--lr", "1e30", "--epochs", "6", "--method", "refilled-lkd")
    kept = "checkpoint is kept" in err.splitlines()[-1]
    assert kept == Path("mine/checkpoint/last.safetensors").exists()


def test_ctrl_c_and_resume(command, image_folder):
    image_folder(["cat", "dog", "owl"])
    argv = ["train", "photos", "--student", "convnet-1", "--epochs", "150", "--batch-size", "8"]
    argv += ["--device", "cpu", "--checkpoint-seconds", "0", "--validate-every", "100", "--out", "mine"]
    process = subprocess.Popen(
        [sys.executable, "-m", "refilled", *argv],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    log, until = Path("mine/metrics.jsonl"), time.monotonic() + 40
    while not (log.exists() and len(log.read_text().splitlines()) > 3):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert "refilled: interrupted; go on with" in err.splitlines()[-1]
    assert "--resume" in err.splitlines()[-1]
    assert not Path("mine/result.json").exists()

    code, out, err = command(*argv, "--resume")
    assert code == 0
    assert "test accuracy" in out
    assert [json.loads(line)["epoch"] for line in log.read_text().splitlines()] == list(range(1, 151))


@pytest.fixture
def interrupted(monkeypatch):
    """Ctrl-C arrives as soon as training begins."""

    def one_epoch(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "_one_epoch", one_epoch)


def test_an_interruption_names_the_folder_that_was_chosen(command, image_folder, interrupted):
    """Without --out nobody knows where to go on, unless it is said."""
    image_folder(["cat", "dog"])
    code, _, err = command("train", "photos", "--student", "convnet-1", *TINY)
    assert code == 130
    (folder,) = Path("runs").iterdir()
    assert str(folder) in err


def test_an_interrupted_demo_does_not_advise_what_it_cannot_do(command, image_folder, interrupted):
    pytest.importorskip("sklearn")
    image_folder([])
    code, _, err = command("demo", "--out", "demo")
    assert code == 130
    assert "--resume" not in err.splitlines()[-1]


# --- what a person reads ------------------------------------------------------------------------------


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


def test_distill_without_comparison(distill):
    code, out, err = distill()
    assert code == 0
    assert "add --compare to see whether the teacher helped" in out
    assert "3 of 3 classes shared (100%)" in err


def test_the_verdict(distill, image_folder):
    image_folder(["dog", "owl", "emu", "yak"], name="others")
    code, out, _ = distill("--compare", "--seeds", "2", data="others")
    assert code == 0
    spread = r"[\d.]+ ± [\d.]+ %"
    assert re.search(rf"refilled +{spread} +[\d.]+ s +2\b", out)
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
