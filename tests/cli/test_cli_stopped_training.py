"""The command line: training that stops halfway, by a loss that is no number or by Ctrl-C."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from refilled.training import loop

from .outcomes import ENVIRONMENT, TINY


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
    code, _, err = distill("--epochs", "6", "--method", "refilled")
    assert code == 2
    assert "loss term 'cross_entropy' became nan in stage 'classifier', epoch 2, step 1" in err
    assert "last good checkpoint is kept" in err
    good = load_file("mine/checkpoint/last.safetensors")
    assert all(bool(tensor.float().isfinite().all()) for tensor in good.values())
    monkeypatch.setattr(loop, "_check_finite", real)
    assert distill("--epochs", "6", "--method", "refilled", "--resume")[0] == 0


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
