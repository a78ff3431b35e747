"""Plain distillation: its value, the order of the teacher's classes, and which teachers it refuses."""

import copy

import pytest
import torch

from objectives import reference
from refilled.errors import UserError
from refilled.labels import LabelSpace
from refilled.methods import get_method

from .world import STUDENT_CLASSES, first_batch, make_batches, make_stages, make_student, make_teacher, values


@pytest.fixture
def student():
    return make_student()


@pytest.fixture
def batches():
    return make_batches()


def permuted(teacher, order):
    """The same teacher with its classes in another order."""
    other = copy.deepcopy(teacher)
    other.classes = LabelSpace(teacher.classes[i] for i in order)
    with torch.no_grad():
        other.head.weight.copy_(teacher.head.weight[order])
        other.head.bias.copy_(teacher.head.bias[order])
    return other


@pytest.mark.parametrize("changes", [{}, {"tau": 1.5, "weight": 0.3}, {"weight": 1.0}], ids=str)
def test_value_against_the_loop(student, batches, changes):
    teacher = make_teacher(STUDENT_CLASSES)
    batch = first_batch(batches)
    (stage,) = make_stages("kd", teacher, student, batches, epochs=6, **changes)
    assert stage.epochs == 6
    assert {id(p) for p in stage.parameters} == {id(p) for p in student.parameters()}
    terms = stage.loss(batch)
    assert list(terms) == ["cross_entropy", "kd"]
    logits, wanted = student(batch.images)[1].double(), teacher(batch.images)[1].double()
    weight = changes.get("weight", 0.9)
    cross_entropy = -logits.log_softmax(1)[range(len(batch)), batch.labels].mean()
    torch.testing.assert_close(
        terms["cross_entropy"].double(), (1 - weight) * cross_entropy, rtol=1e-5, atol=1e-6
    )
    expected = weight * reference.kd(logits, wanted, tau=changes.get("tau", 4.0))
    torch.testing.assert_close(terms["kd"].double(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("order", [[3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]])
def test_teacher_may_have_its_classes_in_any_order(student, batches, order):
    teacher = make_teacher(STUDENT_CLASSES)
    batch = first_batch(batches)
    (straight,) = make_stages("kd", teacher, student, batches)
    (stage,) = make_stages("kd", permuted(teacher, order), student, batches)
    assert values(stage, batch) == pytest.approx(values(straight, batch), rel=1e-5)
    unordered = permuted(teacher, order)
    unordered.classes = teacher.classes  # the same head under wrong names: the order does matter
    (wrong,) = make_stages("kd", unordered, student, batches)
    assert values(wrong, batch)["kd"] != pytest.approx(values(straight, batch)["kd"], rel=1e-3)


def test_names_may_be_written_differently(student, batches):
    teacher = make_teacher(["I-BIS", "h e n", "ANT", "_fox"])
    get_method("kd").check(teacher, student)
    assert (
        torch.tensor(values(make_stages("kd", teacher, student, batches)[0], first_batch(batches))["kd"]) >= 0
    )


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (["fox", "ant", "hen"], "only the student needs ibis"),
        (["fox", "ant", "hen", "ibis", "owl"], "only the teacher knows owl"),
        (["fox", "ant", "hen", "owl"], "only the teacher knows owl; only the student needs ibis"),
        ([f"thing {i}" for i in range(9)], "and 4 more; only the student needs fox, Ant, hen, ibis"),
    ],
)
def test_other_classes_are_refused_by_name(student, classes, message):
    with pytest.raises(UserError, match=message):
        get_method("kd").check(make_teacher(classes), student)
