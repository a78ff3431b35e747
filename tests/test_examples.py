"""The examples, and the README's, run, learn, and are what they say they are."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest
import torch

import refilled

ROOT = Path(__file__).parents[1]
PLAIN_LOOP = ROOT / "examples" / "plain_loop.py"


@pytest.fixture(scope="module")
def plain_loop():
    spec = importlib.util.spec_from_file_location("plain_loop", PLAIN_LOOP)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_plain_loop_learns(plain_loop, capsys):
    """A short run: teacher and both students far above chance (1/8 and 1/6)."""
    teacher, alone, distilled = plain_loop.main(seeds=1, epochs=40, teacher_epochs=5)
    assert teacher > 0.8
    assert 0.5 < alone <= 1
    assert 0.5 < distilled <= 1
    printed = capsys.readouterr().out
    assert f"student alone {alone:.1%}, distilled {distilled:.1%}" in printed


def test_plain_loop_is_repeatable(plain_loop):
    runs = [plain_loop.main(seeds=1, epochs=4, teacher_epochs=1, part="val") for _ in range(2)]
    assert runs[0] == runs[1]


def test_plain_loop_parts_are_disjoint_and_complete(plain_loop):
    data = plain_loop.digits(3)
    assert sum(len(labels) for _, labels in data.values()) == 1797
    rows = {name: {tuple(image.flatten().tolist()) for image in images} for name, (images, _) in data.items()}
    assert not rows["train"] & rows["val"]
    assert not rows["train"] & rows["test"]
    assert not rows["val"] & rows["test"]
    images, labels = plain_loop.of_classes(data["train"], 4, 9, 5)
    assert torch.bincount(labels).tolist() == [5] * 6
    assert images.shape == (30, 1, 8, 8)
    assert 0 <= images.min() < images.max() <= 1


def test_plain_loop_shifts_each_image_on_its_own(plain_loop):
    """A lone bright pixel moves by at most one step each way, and not all of them alike."""
    torch.manual_seed(0)
    images = torch.zeros(200, 1, 8, 8)
    images[:, :, 4, 3] = 1
    moved = plain_loop.shifted(images)
    assert moved.shape == images.shape
    assert moved.sum(dim=(1, 2, 3)).tolist() == [1.0] * 200
    places = {(row, column) for _, _, row, column in moved.nonzero().tolist()}
    assert places == {(row, column) for row in (3, 4, 5) for column in (2, 3, 4)}


def test_plain_loop_leaves_the_teacher_and_first_stage_leaves_the_head(plain_loop, monkeypatch):
    few = plain_loop.of_classes(plain_loop.digits(0)["train"], 4, 9, 5)
    teacher, student = plain_loop.network(0, 7, 0).eval(), plain_loop.network(4, 9, 0)
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    heads, train = [student.head.weight.detach().clone()], plain_loop.train

    def watched(*arguments):
        train(*arguments)
        heads.append(student.head.weight.detach().clone())

    monkeypatch.setattr(plain_loop, "train", watched)
    plain_loop.learn_from(teacher, student, *few, 6)
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())
    assert len(heads) == 3
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[1], heads[2])


def test_plain_loop_uses_nothing_but_models_and_objectives():
    imported = set()
    for node in ast.walk(ast.parse(PLAIN_LOOP.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module)
    ours = {name for name in imported if name.startswith("refilled")}
    assert ours == {"refilled", "refilled.objectives"}
    assert {name.partition(".")[0] for name in imported - ours} <= {
        "torch",
        "sklearn",
        "math",
        "time",
        "collections",
    }


def test_the_losses_of_the_readme_run_as_they_stand():
    """In a loop of one's own, with networks of ours."""
    _, losses = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    labels = torch.arange(12) % 3
    teacher = refilled.load("wrn-10-2", ["x", "y"], image_size=8).eval()
    given = {
        "teacher": teacher, "student": refilled.load("wrn-10-1", ["a", "b", "c"], image_size=8),
        "x": torch.rand(12, 3, 8, 8), "y": labels, "num_classes": 3,
        "all_teacher_embeddings": torch.rand(12, teacher.dim), "all_labels": labels,
    }  # fmt: skip
    exec(losses, given)
    assert given["loss"].isfinite()
    given["loss"].backward()
