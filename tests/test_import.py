"""What ``import refilled`` brings along, the public names, and the one direction of imports."""

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import refilled

SOURCE = Path(refilled.__file__).parent
HEAVY = (
    "tyro", "rich", "matplotlib", "optuna", "sklearn", "timm", "transformers", "torchvision", "torch._dynamo",
)  # fmt: skip
ROOMS = (
    ("errors", "version"),
    ("files", "lock", "checks"),
    ("labels",),
    ("data",),
    ("models",),
    ("objectives",),
    ("methods",),
    ("training",),
    ("evaluation",),
    ("runs",),
    ("fewshot",),
    ("suite", "report"),
    ("cli",),
)
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}
FILES = sorted(SOURCE.rglob("*.py"))


def test_import_brings_nothing_heavy():
    code = f"import refilled, sys; print([name for name in {HEAVY!r} if name in sys.modules])"
    environment = os.environ | {"PYTHONPATH": str(SOURCE.resolve().parent)}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


def test_documented_signatures():
    load = inspect.signature(refilled.load).parameters
    assert list(load)[:2] == ["spec", "classes"]
    assert load["classes"].default is None
    distill = inspect.signature(refilled.distill).parameters
    assert list(distill)[:5] == ["teacher", "student", "data", "method", "out"]
    assert distill["method"].default == "refilled"
    assert any(parameter.kind is parameter.VAR_KEYWORD for parameter in distill.values())


@pytest.mark.parametrize(
    ("name", "positional", "keywords"),
    [
        (
            "comparison_matching",
            ["student", "teacher", "labels"],
            {"tau_student": 1.0, "tau_teacher": 2.0, "margin": None, "max_impostors": None},
        ),
        ("class_centres", ["embeddings", "labels", "num_classes"], {}),
        ("class_scores", ["embeddings", "centres"], {}),
        (
            "local_kd",
            ["student_logits", "teacher_scores", "labels"],
            {"tau_student": 1.0, "tau_teacher": 2.0, "weights": None},
        ),
        ("confidence_weights", ["scores"], {}),
    ],
)
def test_documented_objectives(name, positional, keywords):
    parameters = inspect.signature(getattr(refilled.objectives, name)).parameters
    assert list(parameters)[: len(positional)] == positional
    for keyword, default in keywords.items():
        assert parameters[keyword].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[keyword].default == default


def test_every_public_name_exists():
    assert all(hasattr(refilled, name) for name in refilled.__all__)
    assert {"load", "distill", "objectives"} <= set(refilled.__all__)


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_rooms(tree: ast.Module) -> set[str]:
    """Rooms of our own that a module imports from, anywhere in it; "" is the package itself."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            whole = node.module == "refilled"
            modules = [f"refilled.{alias.name}" for alias in node.names] if whole else [node.module]
        else:
            continue
        ours = [module.split(".") for module in modules if module.split(".")[0] == "refilled"]
        found |= {parts[1] if len(parts) > 1 else "" for parts in ours}
    return found


def test_every_file_has_a_room():
    assert {room_of(path) for path in FILES} - set(LEVEL) == {"__init__", "__main__"}


@pytest.mark.parametrize(
    "path", [p for p in FILES if room_of(p) in LEVEL], ids=lambda p: str(p.relative_to(SOURCE))
)
def test_data_flows_one_way(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    room, rooms = room_of(path), imported_rooms(tree)
    assert "" not in rooms, "a room imports from rooms, not from the package's front door"
    below = {other for other in rooms - {room} if LEVEL[other] >= LEVEL[room]}
    assert not below, f"{room} imports from {below}, which comes after it"
