"""What is said of batches with little to compare, and of a student that is not well."""

import pytest
import torch

import refilled
from refilled.errors import UserError
from refilled.methods.kd import KDSettings
from refilled.methods.refilled_settings import ComparisonSettings, FewSettings, RefilledSettings
from refilled.runs import words
from refilled.runs.run import Run
from refilled.runs.shared import Shared
from refilled.training import TrainSettings
from told import Told


def test_small_batches_of_many_classes_are_named_where_comparisons_are_learnt():
    """64 of 100 classes: an image meets 0.63 others of its class."""
    said = words.advise_groups(RefilledSettings(), 64, 100)
    assert "in a batch of 64 an image meets 0.6 others of its class, of 100" in said
    assert "--set group=4" in said
    assert words.advise_groups(ComparisonSettings(), 64, 100) == said
    for own, size in (
        (RefilledSettings(), 101), (RefilledSettings(group=4), 64), (RefilledSettings(embedding_share=0), 64),
        (FewSettings(), 64), (KDSettings(), 64), (RefilledSettings(), 15),
    ):  # fmt: skip
        assert words.advise_groups(own, size, 100) is None


def make_run(told, **settings):
    """Of all ten digits, in batches of four."""
    teacher = refilled.load("convnet-1", [str(digit) for digit in range(5)], image_size=8)
    return Run(
        teacher, "convnet-1", "digits", "refilled", None,
        resume=False, reporter=told, shared=Shared(), epochs=2, shots=4, device="cpu",
        **({"batch_size": 4} | settings),
    )  # fmt: skip


def test_a_run_says_it(monkeypatch):
    monkeypatch.setattr(words, "_SMALLEST_MEASURED", 4)
    told = Told()
    make_run(told)
    assert sum("--set group=4" in line for line in told.lines) == 1


def test_batches_of_one_class_are_refused():
    with pytest.raises(
        UserError, match=r"group=3 leaves hardly more than one class in a batch of 4 .* most 2"
    ):
        make_run(Told(), group=3)
    assert [stage.group for stage in make_run(Told(), group=2).stages] == [2, 1]
    assert [stage.group for stage in make_run(Told(), batch_size=2).stages] == [1, 1]


def finished(spoil):
    told = Told()
    run = Run(
        None, "convnet-1", "digits", "student", None,
        resume=False, reporter=told, shared=Shared(), epochs=1, shots=4, device="cpu",
    )  # fmt: skip
    spoil(run.student)
    return run.finish(1.0), run.student.dim, told.lines


def test_an_embedding_that_says_nothing_is_named_with_what_to_try():
    def spoil(student):
        with torch.no_grad():
            student.blocks[0][1].bias[:40] = -100.0  # below zero for every image, so the ReLU gives none

    result, dim, lines = finished(spoil)
    assert (result.silent, dim) == (40, 64)
    assert lines[-1].startswith("40 of the 64 dimensions of the student's embedding are the same for all")
    assert lines[-1].endswith("try --lr 0.033 instead of 0.1")
    (line,) = words.last_words(result, dim, TrainSettings(lr=0.3), RefilledSettings())
    assert line.endswith("try --lr 0.1 instead of 0.3, or --set embedding_share=0")


def test_of_a_healthy_one_nothing_is_said():
    result, dim, lines = finished(lambda student: None)
    assert result.silent == 0
    assert not any("dimensions" in line for line in lines)
    assert words.last_words(result, dim, TrainSettings(), None) == []


def test_a_result_that_is_older_has_none(tmp_path):
    result = refilled.distill(
        None, "convnet-1", "digits", "student", out=tmp_path / "run", epochs=1, shots=4, progress=False
    )
    file = tmp_path / "run" / "result.json"
    file.write_text(file.read_text().replace('"silent": 0', '"seed": 0'))
    assert refilled.runs.result.read_result(tmp_path / "run", torch.device("cpu")).silent == 0
    assert result.silent == 0
