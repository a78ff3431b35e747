"""The real thing: a process that is killed without warning, in either stage."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
import sys, torch, refilled
torch.set_num_threads(1)
teacher, out, resume = sys.argv[1:]
refilled.distill(teacher, "convnet-2", "digits", out=out, resume=resume == "resume", progress=False,
                 classes="4:10", shots=5, epochs=16, batch_size=16, checkpoint_seconds=0, val_fraction=0.1)
"""


def start(*arguments: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments], stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen) -> None:
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors


@pytest.fixture(scope="module")
def teacher_and_whole(tmp_path_factory):
    """A teacher of 0-7, and the weights of a run that nothing disturbed."""
    import refilled

    folder = tmp_path_factory.mktemp("runs")
    settings = {"classes": "0:8", "shots": 20, "epochs": 2, "batch_size": 64, "val_fraction": 0.0}
    refilled.distill(None, "convnet-2", "digits", "student", folder / "teacher", progress=False, **settings)
    finish(start(str(folder / "teacher"), str(folder / "whole"), "start"))
    return folder / "teacher", (folder / "whole" / "student.safetensors").read_bytes()


@pytest.mark.parametrize("lines", [3, 11], ids=["embedding", "classifier"])
def test_a_killed_run_ends_with_the_same_weights(teacher_and_whole, tmp_path, lines):
    teacher, whole = teacher_and_whole
    out = tmp_path / "cut"
    process = start(str(teacher), str(out), "start")
    wait_for_lines(out / "metrics.jsonl", lines, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (out / "student.safetensors").exists()  # it was killed before its end
    finish(start(str(teacher), str(out), "resume"))
    assert (out / "student.safetensors").read_bytes() == whole


def wait_for_lines(path: Path, lines: int, process: subprocess.Popen) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        if path.exists() and path.read_text().count("\n") >= lines:
            return
        time.sleep(0.002)
    raise AssertionError(f"the run did not come that far: {process.poll()}")
