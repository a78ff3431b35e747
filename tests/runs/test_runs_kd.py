"""Plain distillation: only for the same classes, in whatever order and spelling they come."""

import copy

import pytest
import torch

from refilled import LabelSpace, UserError
from refilled.data import Batch, Batches
from refilled.methods import get_method
from refilled.models import load


def kd_loss(teacher, student):
    """Distillation term of one batch, at full weight."""
    method = get_method("kd")
    images = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(5))
    labels = torch.arange(6) % 3
    batches = Batches((images * 255).byte(), labels, 6)
    method.check(teacher, student)
    (stage,) = method.stages(teacher, student, batches, method.settings(weight=1.0), 1)
    with torch.no_grad():
        return stage.loss(Batch(images, labels, torch.arange(6)))["kd"].item()


def pair(names, order):
    """A teacher, and the same network with its classes in another order under other names."""
    torch.manual_seed(0)
    teacher = load("wrn-10-1", ["sea_lion", "Cat", "great-dane"], image_size=8).eval()
    torch.nn.init.normal_(teacher.head.weight)
    torch.nn.init.normal_(teacher.head.bias)
    student = copy.deepcopy(teacher)
    with torch.no_grad():
        student.head.weight.copy_(teacher.head.weight[order])
        student.head.bias.copy_(teacher.head.bias[order])
    student.classes = LabelSpace(names)
    return teacher, student


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (["sea_lion", "Cat", "great-dane"], [0, 1, 2]),
        (["great dane", "Sea Lion", "CAT"], [2, 0, 1]),
        (["cat", "greatdane", "sealion"], [1, 2, 0]),
    ],
)
def test_a_student_that_is_the_teacher_in_another_order_loses_nothing(names, order):
    assert kd_loss(*pair(names, order)) == pytest.approx(0, abs=1e-5)


def test_a_wrong_order_would_be_seen():
    assert kd_loss(*pair(["cat", "great dane", "sea lion"], [2, 0, 1])) > 0.01


def test_spelling_and_order_do_not_matter_from_end_to_end(tiny, teacher, image_folder):
    known = teacher(["sea_lion", "Cat", "great-dane"])
    result = tiny(known, "convnet-1", image_folder(["cat", "Great Dane", "sea lion"]), "kd")
    assert result.overlap == 1.0


def test_other_classes_are_refused_by_name_and_nothing_is_written(tiny, teacher, image_folder, snapshot):
    known, photos = teacher(["cat", "dog", "yak"]), image_folder(["cat", "dog", "owl"])
    before = snapshot()
    with pytest.raises(UserError, match=r"teacher knows yak; only the student needs owl.*--method refilled"):
        tiny(known, "convnet-1", photos, "kd", "mine")
    with pytest.raises(UserError, match="teacher knows dog, yak") as caught:
        tiny(known, "convnet-1", photos, "kd", "mine", classes="cat,owl")
    assert "owl" in str(caught.value)
    assert snapshot() == before


def test_a_teacher_that_knows_more_is_refused_too(tiny, teacher, image_folder):
    with pytest.raises(UserError, match="only the teacher knows yak"):
        tiny(teacher(["cat", "dog", "yak"]), "convnet-1", image_folder(["cat", "dog"]), "kd")


def test_a_long_list_of_strangers_is_cut(tiny, teacher, image_folder):
    known = teacher([f"t{number}" for number in range(7)])
    with pytest.raises(UserError, match=r"t0, t1, t2, t3, t4 and 2 more"):
        tiny(known, "convnet-1", image_folder(["a", "b"]), "kd")
