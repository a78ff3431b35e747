"""The command line: damaged images, students and checkpoints are named."""

import re
from pathlib import Path

from safetensors.torch import load_file, save_file

from .outcomes import refusal


def test_a_corrupt_image_is_named_or_skipped_and_counted(distill):
    for number in range(2):
        Path(f"photos/cat/{number}.png").write_bytes(b"broken")
    assert re.search(r"cannot read photos/cat/[01]\.png: .*--skip-bad-images", refusal(distill()))
    code, _, err = distill("--skip-bad-images")
    assert code == 0
    counts = [int(count) for count in re.findall(r"(\d+) \w+ images? could not be read", err)]
    assert sum(counts) == 2


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
