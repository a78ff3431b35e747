"""Training with the methods that match feature maps: what they change, and that they go on when resumed."""

import copy

import pytest
import torch
from torch import nn

from interruption import Crash, CrashAt
from refilled.methods import get_method
from refilled.methods.fresh import fresh
from refilled.training import TrainSettings, train

from .world import (
    FEATURE_METHODS,
    STUDENT_CLASSES,
    first_batch,
    make_batches,
    make_stages,
    make_teacher,
    same_state,
    state,
    tiny,
    values,
)

STUDENTS = ("resnet-8", "mobilenet-0.25", "wrn-10-1", "convnet-1")


@pytest.fixture
def teacher():
    """Of the student's classes, so that every method takes it."""
    return make_teacher(STUDENT_CLASSES)


@pytest.fixture
def student():
    return tiny("resnet-8", STUDENT_CLASSES, seed=2).train()


def run(stage, student, batches, epochs, lr=0.02):
    optimizer = torch.optim.SGD(stage.parameters, lr=lr, momentum=0.9)
    student.train()
    for epoch in range(epochs):
        for batch in batches.epoch(epoch):
            batch.progress = torch.tensor(0.5)
            optimizer.zero_grad(set_to_none=True)
            sum(stage.loss(batch).values()).backward()
            optimizer.step()


@pytest.mark.parametrize("name", FEATURE_METHODS)
def test_teacher_never_changes(name, teacher, student):
    batches, before = make_batches(augment="crop"), state(teacher)
    for stage in make_stages(name, teacher, student, batches):
        assert not {id(p) for p in stage.parameters} & {id(p) for p in teacher.parameters()}
        run(stage, student, batches, epochs=1)
    assert same_state(teacher, before)
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_hints_train_the_lower_half_only(teacher, student, batches):
    hints, _ = make_stages("fitnet", teacher, student, batches)
    before, beside = dict(state(student)), copy.deepcopy(hints.beside.state_dict())
    run(hints, student, batches, epochs=2)
    for name, parameter in student.named_parameters():
        guided = name.startswith(("stem.", "stages.0.", "stages.1."))
        assert torch.equal(parameter, before[name]) != guided, name
    assert all(not torch.equal(value, beside[name]) for name, value in hints.beside.state_dict().items())


@pytest.mark.parametrize("spec", STUDENTS)
@pytest.mark.parametrize("name", FEATURE_METHODS)
def test_training_lowers_the_loss(name, spec):
    """Teacher and student of different architecture, depth, width and number of maps."""
    teacher = make_teacher(STUDENT_CLASSES)
    student, batches = tiny(spec, STUDENT_CLASSES, seed=3).train(), make_batches(size=16, batch_size=16)
    get_method(name).check(teacher, student)
    batch = first_batch(batches)
    for stage in make_stages(name, teacher, student, batches):
        before = sum(values(stage, batch).values())
        run(stage, student, batches, epochs=8, lr=0.002)
        assert sum(values(stage, batch).values()) < before, stage.name


def test_one_image_to_a_batch(teacher, student):
    batches = make_batches(size=4, batch_size=1)
    student.eval()
    for name in FEATURE_METHODS:
        for stage in make_stages(name, teacher, student, batches):
            if stage.beside is not None:
                stage.beside.eval()
            found = values(stage, first_batch(batches))
            assert all(torch.tensor(value).isfinite() for value in found.values()), name


def test_new_layers_depend_on_the_seed_alone():
    made = []
    for seed, noise in ((0, 1), (0, 2), (1, 1)):
        torch.manual_seed(noise)
        made.append(fresh(make_batches(seed=seed), lambda: nn.Conv2d(3, 3, 1)).weight)
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


@pytest.mark.parametrize(
    ("name", "stage", "epoch"),
    [("fitnet", "hint", 1), ("fitnet", "classifier", 0), ("fitnet", "classifier", 1),
     ("vid", "classifier", 1), ("kd-vid", "classifier", 2), ("overhaul", "classifier", 0),
     ("overhaul", "classifier", 2)],
)  # fmt: skip
def test_an_interrupted_run_goes_on_with_the_same_layers(tmp_path, teacher, name, stage, epoch):
    settings = TrainSettings(epochs=4, batch_size=12, lr=0.01, checkpoint_seconds=0)

    def trained(folder, seed, resume=False, reporter=None):
        torch.manual_seed(seed)  # the process of a resumed run has drawn other numbers
        student = tiny("resnet-8", STUDENT_CLASSES, seed=2)
        torch.manual_seed(seed)
        batches = make_batches(augment="crop")
        options = {"hint_share": 0.5} if name == "fitnet" else {}
        stages = make_stages(name, teacher, student, batches, epochs=4, **options)
        train(stages, student, batches, settings, folder=folder, resume=resume, reporter=reporter)
        return student, stages[0].beside

    whole, beside = trained(tmp_path / "whole", 1)
    with pytest.raises(Crash):
        trained(tmp_path / "cut", 2, reporter=CrashAt(stage, epoch))
    resumed, beside_again = trained(tmp_path / "cut", 3, resume=True)
    assert same_state(resumed, state(whole))
    if stage == "hint" or name != "fitnet":
        assert same_state(beside_again, state(beside))
