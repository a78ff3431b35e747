"""Methods that stand around ReFilled: a part of it, plain distillation after it, and the teacher itself."""

import pytest
import torch

from refilled.errors import UserError
from refilled.methods import get_method
from refilled.training import TrainSettings, train

from .world import (
    STUDENT_CLASSES,
    TEACHER_CLASSES,
    make_batches,
    make_stages,
    make_student,
    make_teacher,
    tiny,
)


def test_stage_1_alone_leaves_the_head_alone():
    teacher, student, batches = make_teacher().requires_grad_(False), make_student(), make_batches()
    head = student.head.weight.clone()
    (stage,) = make_stages("refilled-stage1", teacher, student, batches, epochs=2)
    assert (stage.epochs, stage.judge, stage.asks) == (2, "embedding", teacher)
    train([stage], student, batches, TrainSettings(epochs=2))
    assert torch.equal(student.head.weight, head)


def test_plain_distillation_after_stage_1():
    teacher = make_teacher(STUDENT_CLASSES)
    student, batches = make_student(), make_batches()
    first, second = make_stages("refilled-kd", teacher, student, batches, epochs=4, tau=3.0)
    assert (first.name, second.name) == ("embedding", "classifier")
    batch = next(batches.epoch(0))
    alone = make_stages("kd", teacher, student, batches, tau=3.0)[0]
    assert {k: float(v) for k, v in second.loss(batch).items()} == pytest.approx(
        {k: float(v) for k, v in alone.loss(batch).items()}
    )
    with pytest.raises(UserError, match="refilled-kd needs a teacher of the same classes"):
        get_method("refilled-kd").check(make_teacher(TEACHER_CLASSES), student)


def test_fine_tuning_starts_from_the_teacher_and_trains_on():
    teacher = tiny("wrn-10-2", TEACHER_CLASSES, 1).eval().requires_grad_(False)
    teacher.normalise_by((0.2, 0.3, 0.4), (0.5, 0.6, 0.7))
    student, batches = tiny("wrn-10-2", STUDENT_CLASSES, 2), make_batches()
    get_method("fine-tune").check(teacher, student)
    (stage,) = make_stages("fine-tune", teacher, student, batches, epochs=2)
    images = torch.rand(3, 3, 8, 8)
    stage.begin()
    assert torch.allclose(student.eval().embed(images), teacher.embed(images))
    assert student.head.weight.shape[0] == len(STUDENT_CLASSES)
    before = [parameter.clone() for parameter in teacher.parameters()]
    train([stage], student, batches, TrainSettings(epochs=2))
    assert not torch.allclose(student.embed(images), teacher.embed(images))
    assert all(torch.equal(a, b) for a, b in zip(before, teacher.parameters()))


def test_fine_tuning_needs_the_same_architecture():
    with pytest.raises(UserError, match="that is wrn-10-2, not convnet-1"):
        get_method("fine-tune").check(make_teacher(), make_student())
