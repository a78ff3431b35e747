import pytest
import torch

from refilled.errors import UserError
from refilled.labels import LabelSpace
from refilled.methods import get_method
from refilled.methods.ewc import fisher_information
from refilled.methods.keeping import all_classes, keeping_stages
from refilled.objectives import weight_consolidation
from refilled.training import TrainSettings, train

from .world import STUDENT_CLASSES, TEACHER_CLASSES, make_batches, make_student, make_teacher, tiny

OWN = LabelSpace(STUDENT_CLASSES)


def test_consolidation_is_half_the_weighted_square():
    weights = [torch.randn(3, 2, dtype=torch.float64, requires_grad=True), torch.randn(4).double()]
    old, fisher = [torch.randn_like(w) for w in weights], [torch.rand_like(w) for w in weights]
    by_hand = sum(
        0.5 * float(f) * (float(w) - float(o)) ** 2
        for ws, os, fs in zip(weights, old, fisher)
        for w, o, f in zip(ws.detach().flatten(), os.flatten(), fs.flatten())
    )
    loss = weight_consolidation(weights, old, fisher)
    assert float(loss.detach()) == pytest.approx(by_hand, rel=1e-6)
    loss.backward()
    assert torch.allclose(weights[0].grad, (fisher[0] * (weights[0] - old[0])).detach())
    assert float(weight_consolidation(old, old, fisher)) == 0.0


def test_fisher_information_is_the_mean_square_of_each_images_gradient():
    teacher, batches = make_teacher(), make_batches(size=8, batch_size=8, augment="none")
    found = fisher_information(teacher, batches, images=5)
    assert all((f >= 0).all() for f in found)
    assert [f.shape for f in found] == [p.shape for p in teacher.backbone_parameters()]
    assert torch.equal(found[0], fisher_information(teacher, batches, 5)[0])  # the seed decides the labels
    generator_free = fisher_information(teacher, batches, images=1)[0]
    image = batches.source.images[:1].float() / 255
    squares = []
    for label in range(len(TEACHER_CLASSES)):  # the drawn label is one of them
        log_p = teacher(image)[1].log_softmax(1)[0, label]
        gradient = torch.autograd.grad(log_p, teacher.backbone_parameters()[0])[0]
        squares.append(gradient.square())
    assert any(torch.allclose(generator_free, square, rtol=1e-3, atol=1e-8) for square in squares)


def made(strength: float):
    teacher = tiny("wrn-10-2", TEACHER_CLASSES, 1).eval().requires_grad_(False)
    student, batches = tiny("wrn-10-2", list(all_classes(teacher, OWN)), 2), make_batches()
    chosen = get_method("ewc")
    chosen.check(teacher, student)
    settings = chosen.settings(ewc_strength=strength, fisher_images=8)
    stages = keeping_stages(chosen, teacher, student, OWN, batches, settings, 2, weight=0.0, tau=2.0)
    return teacher, student, batches, stages


def test_it_starts_as_the_teacher_and_moves_less_the_stronger_it_is_held():
    moved = []
    for strength in (0.0, 10000.0):
        teacher, student, batches, (stage,) = made(strength)
        stage.begin()
        images = torch.rand(3, 3, 8, 8)
        z, logits = student.eval()(images)
        assert torch.allclose(z, teacher.embed(images), atol=1e-6)
        assert torch.allclose(logits[:, : len(TEACHER_CLASSES)], teacher(images)[1], atol=1e-5)
        train([stage], student, batches, TrainSettings(epochs=2, lr=0.001, weight_decay=0.0))
        pairs = zip(student.backbone_parameters(), teacher.backbone_parameters())
        moved.append(sum(float((a - b).detach().square().sum()) for a, b in pairs))
    assert 0 < moved[1] < moved[0]


def test_no_weight_is_held_so_stiffly_that_it_overshoots():
    """The curvature of the penalty times the learning rate stays far below 2, whatever the teacher."""
    *_, (stage,) = made(get_method("ewc").settings().ewc_strength)
    most = max(float(fisher.max()) for fisher in stage.beside.pairs()[1])
    assert most <= 1e-4 * (1 + 1e-6)
    assert 0.1 * 1000 * most <= 0.011


def test_another_architecture_is_refused():
    with pytest.raises(UserError, match="ewc needs a student of the teacher's architecture"):
        get_method("ewc").check(make_teacher(), make_student())
