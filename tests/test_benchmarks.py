"""The benchmarks run to their end, and what they measure against does the same as the library."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import refilled
from refilled.data import Batch, Batches
from refilled.errors import UserError
from refilled.methods import get_method
from refilled.objectives import comparison_matching

FOLDER = Path(__file__).parents[1] / "benchmarks"
WAYS = ("user", "plain", "fast")


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


def started(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A benchmark that has run on a CPU."""
    source = str(Path(refilled.__file__).resolve().parents[1])
    return subprocess.run(
        [sys.executable, str(FOLDER / script), *arguments, "--device", "cpu"],
        env=os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def run(script: str, *arguments: str) -> str:
    """What it prints."""
    found = started(script, *arguments)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_every_way_has_a_rate():
    printed = run("training.py", "--tiny")
    assert "LEFT OUT" not in printed
    assert "asked about 4 views" in printed
    names = [f"wrn-10-1, {stage}, {way}" for stage in ("alone", "stage 1", "stage 2") for way in WAYS]
    names += [f"wrn-10-1, {stage}, fast, teacher in the step" for stage in ("stage 1", "stage 2")]
    for name in [*names, "evaluation, wrn-10-1, user", "evaluation, wrn-10-1, ours"]:
        (rate,) = re.findall(rf"^{name}: ([\d,]+) ± [\d,]+ images/s", printed, re.MULTILINE)
        assert int(rate.replace(",", "")) > 0, name
    assert len(re.findall(r"^2 seeds together, .* [\d.]+x that of one$", printed, re.MULTILINE)) == 3
    assert len(re.findall(r"^\| wrn-10-1 \| .* \| [\d.]+% \(\w+\) \|$", printed, re.MULTILINE)) == len(names)


def test_every_pace_is_measured():
    printed = run("pace.py", "--trainings", "convnet-1:2", "convnet-1:4", "--seconds", "0.1", "--rounds", "1")
    rates = re.findall(
        r"^round 1, (.*): convnet-1:2 ([\d,]+), convnet-1:4 ([\d,]+); [\d.]+$", printed, re.MULTILINE
    )
    assert [way for way, *_ in rates] == ["in step", "at its own pace", "first before others"]
    assert all(int(rate.replace(",", "")) > 0 for _, *both in rates for rate in both)


def test_a_mistake_is_told_in_a_line():
    found = started("pace.py", "--trainings", "wrn-9-1:4")
    assert found.returncode == 1
    assert re.fullmatch(r"pace: wrn-9-1: the depth .*\n", found.stderr)


def test_every_block_is_a_part_of_a_table():
    import blocks

    for name in blocks.BLOCKS:
        cells = blocks.cells_of(name, seeds=2)
        assert cells, name
        assert {cell.seed for cell in cells} == {0, 1}
        assert len({cell.key for cell in cells}) == len(cells)


def test_blocks_are_counted_and_a_wrong_name_is_refused(tmp_path, monkeypatch, capsys):
    import blocks

    monkeypatch.setattr(sys, "argv", ["blocks.py", "--ledger", str(tmp_path / "none.jsonl")])
    blocks.main()
    assert "A: 0 of 63 cells of cifar100-gkd are there" in capsys.readouterr().out
    for wrong, told in ((["A+Z"], "unknown block 'Z'"), (["A", "--draw", "tsen"], "did you mean 'tsne'?")):
        monkeypatch.setattr(sys, "argv", ["blocks.py", *wrong])
        with pytest.raises(UserError, match=re.escape(told)):
            blocks.main()


def test_blocks_are_run_one_after_the_other_and_joined_ones_together(tmp_path, monkeypatch):
    import blocks

    runs = []
    monkeypatch.setattr(blocks.suite.Bench, "run", lambda bench, cells: runs.append(len(cells)))
    monkeypatch.setattr(
        sys, "argv", ["blocks.py", "A+D-ncm", "C-few", "--ledger", str(tmp_path / "no.jsonl")]
    )
    blocks.main()
    assert runs == [63 + 6, 18]


def test_brute_force_is_comparison_matching():
    from brute_force import brute_force

    torch.manual_seed(0)
    student, teacher, labels = torch.randn(24, 5), torch.randn(24, 7), torch.arange(24) % 4
    for settings in ({}, {"margin": 0.3}, {"tau_student": 0.2, "tau_teacher": 0.5}):
        ours = comparison_matching(student, teacher, labels, **settings)
        torch.testing.assert_close(
            brute_force(student, teacher, labels, **settings), ours, rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize("stage", ["alone", "1", "2"])
def test_the_users_loop_has_the_same_loss(stage):
    import user_loop
    from our_loop import make_stage

    torch.manual_seed(0)
    images, labels = torch.randint(0, 256, (24, 3, 32, 32), dtype=torch.uint8), torch.arange(24) % 5
    teacher = refilled.load("wrn-10-1", 7).eval().requires_grad_(False)
    student = refilled.load("wrn-10-1", 6).eval()
    batches = Batches(images, labels, 24)
    batch = next(batches.ordered(24))
    ours = make_stage(stage, teacher, student, batches, 2).loss(batch)

    how = student.preprocess
    pictures = user_loop.Pictures(images, labels, how.mean, how.std, augment=False)
    loader = user_loop.make_loader(pictures, 24, 0, torch.device("cpu"))
    if stage == "alone":
        loss = user_loop.alone_loss(student)
    elif stage == "1":
        loss = user_loop.embedding_loss(student, teacher)
    else:
        present = user_loop.class_centres(teacher, loader, 5, torch.device("cpu"))
        centres = torch.cat([present, torch.zeros(1, teacher.dim)])
        loss = user_loop.classifier_loss(student, teacher, centres)
    torch.testing.assert_close(loss(*next(iter(loader))), sum(ours.values()), rtol=1e-3, atol=1e-5)


def test_the_users_defaults_are_ours():
    import user_loop

    settings = get_method("refilled-two-stages").settings()
    assert settings.comparison_tau_teacher == settings.comparison_tau_student == user_loop.TAU_COMPARISON
    assert (settings.tau_teacher, settings.tau_student) == (user_loop.TAU_TEACHER, user_loop.TAU_STUDENT)
    assert settings.strength == user_loop.STRENGTH
    assert settings.weight == "head"


def test_a_picture_is_shifted_and_mirrored_as_ours():
    """Every augmented picture is one of the 162 views that ours shows."""
    import user_loop

    image = torch.randint(0, 256, (1, 3, 32, 32), dtype=torch.uint8)
    pictures = user_loop.Pictures(image, torch.tensor([0]), (0, 0, 0), (1, 1, 1), augment=True)
    batches = Batches(image.expand(162, -1, -1, -1), torch.zeros(162, dtype=torch.int64), 162, "crop-flip")
    rows = torch.arange(162)
    every: Batch = batches.assemble(image.expand(162, -1, -1, -1), rows, rows)
    for _ in range(20):
        differences = (every.images - pictures[0][0]).abs().amax(dim=(1, 2, 3))
        assert differences.min() < 1e-6


def test_counts_of_a_network():
    import roofline

    counts = roofline.count(refilled.load("wrn-10-1", 10), 32)
    group = 32 * 32 * 16 * 16 * 9
    first = 32 * 32 * 16 * 27 + 2 * group
    later = group // 2 + group  # half the channels come in, at half the side
    shortcuts = 16 * 16 * 32 * 16 + 8 * 8 * 64 * 32
    assert counts.products == first + 2 * later + shortcuts + 640
    assert counts.normed == 16 * 1024 * 2 + 16 * 1024 + 32 * 256 + 32 * 256 + 64 * 64 + 64 * 64
    operations, moved = roofline.demands(counts, None, 4, 2)
    assert operations == 6 * 4 * counts.products
    asked, moved_more = roofline.demands(counts, counts, 4, 2)
    assert asked == operations * 4 / 3
    assert moved_more - moved == 2 * (4 * counts.touched + counts.weights)
    assert roofline.floor(10, 3, roofline.Rates(5, 1)) == (3, "bytes")
    assert roofline.floor(20, 3, roofline.Rates(5, 1)) == (4, "operations")


def test_every_way_of_few_shot_trainings_has_a_rate():
    source = str(Path(refilled.__file__).resolve().parents[1])
    found = subprocess.run(
        [sys.executable, str(FOLDER / "fewshot.py"), "--tiny", "--device", "cpu"],
        env=os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert found.returncode == 0, found.stderr
    for way in ("one by one", "loop", "grouped", "matrices", "vmap"):
        (rate,) = re.findall(rf"^{way}: ([\d.]+) ± .* tasks/s", found.stdout, re.MULTILINE)
        assert float(rate) > 0, way
