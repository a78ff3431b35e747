"""Training with AML, SEED, CRD, SSKD and BAN: unusual batches, half precision, and resumed runs."""

import pytest
import torch

from interruption import Crash, CrashAt
from refilled.training import TrainSettings, train

from .test_stages import run
from .world import (
    EMBEDDING_METHODS,
    STUDENT_CLASSES,
    TEACHER_CLASSES,
    first_batch,
    make_batches,
    make_stages,
    make_student,
    make_teacher,
    same_state,
    state,
    values,
)

SMALL = {  # what makes a test of the method quick, and whole
    "crd": {"dim": 16},
    "ban": {"generations": 2},
    "refilled": {"imitation": 2.0, "fade": 0.5},
}


def teacher_for(name):
    """Of the same classes where the method needs that; else of others."""
    return make_teacher(STUDENT_CLASSES if name == "ban" else TEACHER_CLASSES)


@pytest.mark.parametrize("name", EMBEDDING_METHODS)
@pytest.mark.parametrize("epochs", [2, 5, 11])
def test_epochs_add_up(name, epochs, batches):
    stages = make_stages(name, teacher_for(name), make_student(), batches, epochs, **SMALL.get(name, {}))
    assert sum(stage.epochs for stage in stages) == epochs
    assert all(stage.epochs >= 1 for stage in stages)


@pytest.mark.parametrize("name", EMBEDDING_METHODS)
def test_making_stages_draws_nothing_from_the_global_generator(name, batches):
    torch.manual_seed(4)
    expected = torch.rand(3)
    teacher, student = teacher_for(name), make_student()
    torch.manual_seed(4)
    make_stages(name, teacher, student, batches, **SMALL.get(name, {}))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("name", "lr"),
    [("aml", 0.01), ("seed", 0.05), ("seed-supervised", 0.05), ("crd", 0.01), ("sskd", 0.05), ("ban", 0.003)],
)
def test_training_lowers_the_loss(name, lr):
    """Teacher and student of different dimensions and, but for BAN, of different classes."""
    student, batches = make_student(), make_batches(size=32, batch_size=32)
    for stage in make_stages(name, teacher_for(name), student, batches, **SMALL.get(name, {})):
        if stage.begin:
            stage.begin()
        batch, measured = first_batch(batches), []
        for _ in range(2):  # queue and memory are filled in the first round
            run(stage, student, batches, epochs=15, lr=lr)
            torch.manual_seed(0)
            measured.append(sum(values(stage, batch).values()))
        assert measured[1] < measured[0] - 1e-3, stage.name


@pytest.mark.parametrize("name", EMBEDDING_METHODS)
def test_under_bfloat16_autocast(name, batches):
    student = make_student()
    for stage in make_stages(name, teacher_for(name), student, batches, **SMALL.get(name, {})):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            terms = stage.loss(first_batch(batches))
        assert all(term.dtype == torch.float32 for term in terms.values())
        sum(terms.values()).backward()
        for parameter in stage.parameters:
            assert parameter.grad.dtype == torch.float32
            assert parameter.grad.isfinite().all()
        if stage.beside is not None:
            assert all(buffer.dtype != torch.bfloat16 for buffer in stage.beside.buffers())


@pytest.mark.parametrize("name", EMBEDDING_METHODS)
@pytest.mark.parametrize("classes", ["one", "one image each"])
def test_unusual_batches(name, classes):
    """All images of one class, or each of a class of its own."""
    names = [f"thing {i}" for i in range(8)]
    batches = make_batches(size=64, classes=8, batch_size=8)
    batch, largest = first_batch(batches), torch.bincount(batches.labels).argmax()
    batch.rows = (batches.labels == largest).nonzero()[:8, 0] if classes == "one" else torch.arange(8)
    batch.labels = batches.labels[batch.rows]
    assert (len(batch), len(batch.labels.unique())) == (8, 1 if classes == "one" else 8)
    student = make_student(names)
    teacher = make_teacher(names if name == "ban" else TEACHER_CLASSES)
    for stage in make_stages(name, teacher, student, batches, **SMALL.get(name, {})):
        terms = stage.loss(batch)
        assert all(term.isfinite() for term in terms.values())
        sum(terms.values()).backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in stage.parameters)


@pytest.mark.parametrize("name", EMBEDDING_METHODS)
def test_asks_only_for_what_can_be_looked_up(name, batches):
    """Where a stage asks, known embeddings are all that it wants of that network."""
    student = make_student()
    for stage in make_stages(name, teacher_for(name), student, batches, **SMALL.get(name, {})):
        if stage.asks is None:
            continue
        batch = first_batch(batches)
        if name not in ("seed", "crd"):  # their second look at a batch would be another
            expected = values(stage, batch)
        batch.answers = stage.asks.embed(batch.images).detach()
        stage.asks.embed_prepared = None  # any use of it would fail
        found = values(stage, batch)
        del stage.asks.embed_prepared
        if name not in ("seed", "crd"):
            assert found == pytest.approx(expected, rel=1e-5)


def trained(name, folder, *, resume=False, reporter=None, noise=0):
    torch.manual_seed(noise)
    student, batches = make_student(), make_batches(augment="crop-flip")
    stages = make_stages(name, teacher_for(name), student, batches, epochs=6, **SMALL.get(name, {}))
    torch.rand(noise + 1)
    settings = TrainSettings(epochs=6, lr=0.01, batch_size=12, checkpoint_seconds=0, device="cpu")
    train(stages, student, batches, settings, folder=folder, resume=resume, reporter=reporter)
    return student, stages


@pytest.mark.parametrize("name", [*EMBEDDING_METHODS, "refilled"])
@pytest.mark.parametrize("where", ["first epoch", "middle", "between the stages", "last epoch"])
def test_an_interrupted_run_goes_on_exactly(name, where, tmp_path):
    whole, stages = trained(name, tmp_path / "whole")
    last = len(stages) - 1
    stage, epoch = {
        "first epoch": (0, 0),
        "middle": (0, max(1, stages[0].epochs - 1)),
        "between the stages": (last, 0),
        "last epoch": (last, stages[-1].epochs - 1),
    }[where]
    if where == "middle" and stages[0].epochs == 1:
        pytest.skip("a stage of one epoch")
    with pytest.raises(Crash):
        trained(name, tmp_path / "cut", reporter=CrashAt(stages[stage].name, epoch))
    resumed, again = trained(name, tmp_path / "cut", resume=True, noise=5)
    assert same_state(resumed, state(whole))
    for one, other in zip(stages, again):
        if one.beside is not None and one is stages[-1]:
            assert same_state(other.beside, state(one.beside))
