import pytest
import torch
from torch.nn import functional as F

from refilled.errors import UserError
from refilled.labels import LabelSpace
from refilled.methods import METHODS, get_method
from refilled.methods.keeping import (
    OwnClasses,
    all_classes,
    calibrate,
    check_keeping,
    columns_of,
    keeping_stages,
)
from refilled.models import load
from refilled.training import TrainSettings, train

from .world import STUDENT_CLASSES, TEACHER_CLASSES, make_batches, make_teacher, tiny

OWN = LabelSpace(STUDENT_CLASSES)  # fox and Ant are the teacher's too, hen and ibis are new
KEEPERS = [name for name, method in METHODS.items() if method.keeps and method.check is None]


def world(method: str = "refilled", epochs: int = 4, **settings):
    teacher = make_teacher().requires_grad_(False)
    student = tiny("convnet-1", list(all_classes(teacher, OWN)), 2).train()
    batches, chosen = make_batches(), get_method(method)
    stages = keeping_stages(
        chosen, teacher, student, OWN, batches, chosen.settings(**settings), epochs, weight=1.5, tau=2.0
    )
    return teacher, student, batches, stages


def test_all_classes_are_the_teachers_then_the_new_ones():
    classes = all_classes(make_teacher(), OWN)
    assert list(classes) == [*TEACHER_CLASSES, "hen", "ibis"]
    assert columns_of(classes, OWN) == [5, 0, 7, 8]


def test_a_method_sees_the_own_classes_only():
    student = load("convnet-1", [*TEACHER_CLASSES, "hen", "ibis"], image_size=8).eval()
    seen = OwnClasses(student, OWN)
    images = torch.rand(4, 3, 8, 8)
    z, logits = student(images)
    own_z, own = seen(images)
    assert torch.equal(own_z, z)
    assert torch.equal(own, logits[:, [5, 0, 7, 8]])
    assert seen.classes == OWN
    assert {id(p) for p in seen.backbone_parameters()} == {id(p) for p in student.backbone_parameters()}
    assert {id(p) for p in seen.parameters()} == {id(p) for p in student.parameters()}


def test_the_loss_is_the_methods_own_and_the_term_that_keeps():
    teacher, student, batches, stages = world("student")
    batch = next(batches.epoch(0))
    terms = stages[0].loss(batch)
    logits = student(batch.images)[1]
    wanted = teacher(batch.images)[1]
    own = logits[:, [5, 0, 7, 8]]
    assert float(terms["cross_entropy"]) == pytest.approx(float(F.cross_entropy(own, batch.labels)), rel=1e-5)
    p, q = (wanted / 2).softmax(1), (logits[:, :7] / 2).log_softmax(1)
    by_hand = 1.5 * 4 * (p * (p.log() - q)).sum(1).mean()
    assert float(terms["keeping"]) == pytest.approx(float(by_hand), rel=1e-4)
    assert stages[0].asks is teacher


@pytest.mark.parametrize("name", KEEPERS)
def test_every_method_that_can_learns_both(name):
    teacher, student, batches, stages = world(name, epochs=6)
    assert sum(stage.epochs for stage in stages) == 6
    images = next(batches.ordered(24)).images

    def apart() -> float:
        with torch.no_grad():
            wanted, logits = teacher(images)[1], student.eval()(images)[1]
        return float(F.kl_div(logits[:, :7].log_softmax(1), wanted.softmax(1), reduction="batchmean"))

    before, head = apart(), student.head.weight.clone()
    train(stages, student, batches, TrainSettings(epochs=6, lr=0.02))
    assert apart() < before
    assert not torch.equal(student.head.weight, head)


def test_stages_that_do_not_train_the_head_stay_as_they_are():
    _, _, batches, stages = world("refilled")
    assert [stage.name for stage in stages] == ["embedding", "classifier"]
    assert set(stages[0].loss(next(batches.epoch(0)))) == {"comparison"}
    assert set(stages[1].loss(next(batches.epoch(0)))) == {"cross_entropy", "local_kd", "keeping"}


def test_calibration_drops_biases_and_gives_one_length():
    student = load("convnet-1", OWN, image_size=8).eval()
    with torch.no_grad():
        student.head.bias.fill_(3.0)
        student.head.weight[0] *= 10
    length = student.head.weight.norm(dim=1).mean()
    direction = F.normalize(student.head.weight, dim=1)
    assert calibrate(student)
    assert not student.head.bias.any()
    assert torch.allclose(student.head.weight, direction * length, atol=1e-6)
    student.head = torch.nn.Identity()
    assert not calibrate(student)


def test_what_cannot_be_kept_is_refused():
    with pytest.raises(UserError, match="method at cannot keep the teacher's classes"):
        check_keeping(get_method("at"), make_teacher())
    headless = make_teacher()
    headless.head = torch.nn.Identity()
    with pytest.raises(UserError, match="has no head whose classes could be kept"):
        check_keeping(get_method("refilled"), headless)
