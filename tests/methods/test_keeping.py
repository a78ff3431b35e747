import copy
import itertools
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from refilled import objectives
from refilled.errors import UserError
from refilled.labels import LabelSpace
from refilled.methods import METHODS, get_method
from refilled.methods.at import Attentions
from refilled.methods.keeping import (
    OwnClasses,
    all_classes,
    calibrate,
    check_keeping,
    columns_of,
    familiarity,
    keeping_stages,
    level,
    stands_out,
)
from refilled.methods.mixtures import show
from refilled.models import load
from refilled.training import TrainSettings, train

from .world import STUDENT_CLASSES, TEACHER_CLASSES, make_batches, make_teacher, tiny

OWN = LabelSpace(STUDENT_CLASSES)  # fox and Ant are the teacher's too, hen and ibis are new
KEEPERS = [
    name
    for name, method in METHODS.items()
    if method.keeps and method.fits is None and not method.same_classes
]


def world(method: str = "refilled", epochs: int = 4, **settings):
    teacher = make_teacher().requires_grad_(False)
    student = tiny("convnet-1", list(all_classes(teacher, OWN)), 2).train()
    batches, chosen = make_batches(), get_method(method)
    stages = keeping_stages(
        chosen, teacher, student, OWN, batches, chosen.settings(**settings), epochs, weight=1.5, tau=2.0
    )
    return teacher, student, batches, stages


def test_old_classes_are_kept_with_images_and_not_with_mixtures():
    teacher, student, batches, stages = world("refilled", mixtures=True)
    batch = next(iter(batches.epoch(0)))
    torch.manual_seed(0)
    terms = stages[1].loss(batch)
    assert set(terms) == {"cross_entropy", "imitation", "keeping"}
    torch.manual_seed(0)
    own = student.embed(show(batch, True).images)[: len(batch)]
    wanted = teacher.classify(teacher.embed(batch.images))
    expected = 1.5 * objectives.kd(student.classify(own)[:, : len(teacher.classes)], wanted, tau=2.0)
    assert float(terms["keeping"]) == pytest.approx(float(expected), rel=1e-5)


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


def test_of_another_kind_of_answers_none_is_taken_for_embeddings():
    """Nor is a stage shared with trainings that keep no classes."""
    teacher, wanted = make_teacher().requires_grad_(False), Attentions(((2, 2),))
    student, usual = tiny("convnet-1", list(all_classes(teacher, OWN)), 2), get_method("student")

    def stages_of(**changes):
        def stages(*given):
            return [replace(stage, recipe="same", **changes) for stage in usual.stages(*given)]

        given = (replace(usual, stages=stages), teacher, student, OWN, make_batches(), usual.settings(), 2)
        return keeping_stages(*given, weight=1.0, tau=2.0)

    (others,), (embeddings,) = stages_of(asks=teacher, wanted=wanted), stages_of()
    assert (others.asks, embeddings.asks) == (None, teacher)
    assert (others.recipe, embeddings.recipe) == (None, None)


def test_stages_that_do_not_train_the_head_stay_as_they_are():
    _, _, batches, stages = world("refilled-two-stages")
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


def above_the_mean(scores):
    """How far the best of one image's scores stand out, with nothing but Python."""
    mean = sum(scores) / len(scores)
    return sum(max(score - mean, 0) ** 3 for score in scores) ** (1 / 3)


def test_what_stands_out_is_what_lies_above_the_mean():
    assert above_the_mean([4.0, 1.0, 1.0]) == pytest.approx(2.0)
    torch.manual_seed(0)
    scores = torch.randn(5, 4)
    expected = sum(above_the_mean(row) for row in scores.tolist()) / 5
    assert stands_out(scores) == pytest.approx(expected, rel=1e-5)
    assert stands_out(3 * scores + 7) == pytest.approx(3 * expected, rel=1e-4)
    assert stands_out(torch.ones(5, 4)) == 0


def familiarity_by_hand(z, labels, num_classes):
    """The same over every half of the classes, image by image."""
    z = F.normalize(z, dim=1)

    def score(i, c):
        others = [j for j in range(len(z)) if labels[j] == c and j != i]
        return float(z[i] @ z[others].mean(dim=0))

    known, foreign = [], []
    for half in itertools.combinations(range(num_classes), num_classes // 2):
        inside, outside = [], []
        for i in range(len(z)):
            scores = [score(i, c) for c in half]
            (inside if labels[i] in half else outside).append(above_the_mean(scores))
        known.append(sum(inside) / len(inside))
        foreign.append(sum(outside) / len(outside))
    return sum(known) / sum(foreign)


def test_familiarity_is_that_of_all_halves_but_for_the_draw():
    torch.manual_seed(0)
    labels = torch.arange(24) % 4
    z = 2 * torch.eye(4)[labels] @ torch.randn(4, 6) + torch.randn(24, 6)
    expected = familiarity_by_hand(z, labels, 4)
    assert expected > 1.5
    assert familiarity(z, labels, 4) == pytest.approx(expected, rel=0.1)
    assert familiarity(7 * z, labels, 4) == pytest.approx(familiarity(z, labels, 4), rel=1e-4)


def test_familiarity_where_classes_are_few_or_nothing_is_told_apart():
    torch.manual_seed(0)
    labels = torch.arange(12) % 3
    z = 2 * torch.eye(3)[labels] @ torch.randn(3, 6) + torch.randn(12, 6)
    known, foreign = [], []
    for left_out in range(3):  # two classes are as near to half of three as one can get
        unit, half = F.normalize(z, dim=1), [c for c in range(3) if c != left_out]
        for i in range(12):
            cosines = [
                float(unit[i] @ unit[[j for j in range(12) if labels[j] == c and j != i]].mean(dim=0))
                for c in half
            ]
            (foreign if labels[i] == left_out else known).append(above_the_mean(cosines))
    expected = (sum(known) / 24) / (sum(foreign) / 12)
    assert familiarity(z, labels, 3) == pytest.approx(expected, rel=0.2)
    assert familiarity(torch.ones(12, 4), labels, 3) == 1.0


def own_world():
    """A teacher of 7 classes, a student of these and 4 that are all new, and images."""
    teacher = make_teacher().requires_grad_(False)
    own = LabelSpace(["hen", "ibis", "jay", "kea"])
    student = tiny("convnet-1", list(all_classes(teacher, own)), 2).eval()
    with torch.no_grad():
        student.head.bias.normal_()
    return teacher, student, own, next(make_batches().ordered(24))


def levelled(teacher, student, own, batch):
    with torch.no_grad():
        logits, z = student(batch.images)[1], teacher(batch.images)[0]
    return level(student, teacher, own, logits, z, batch.labels)


def test_a_common_level_keeps_the_order_within_each_group():
    teacher, student, own, batch = own_world()
    before = student(batch.images)[1].detach()
    assert levelled(teacher, student, own, batch)
    after = student(batch.images)[1].detach()
    old, new = before[:, :7], before[:, 7:]
    assert torch.allclose(after[:, :7], old - old.mean(dim=1, keepdim=True), atol=1e-5)
    best = [sum(above_the_mean(row) for row in group.tolist()) for group in (old, new)]
    factor = familiarity(teacher(batch.images)[0], batch.labels, 4) * best[0] / best[1]
    assert torch.allclose(after[:, 7:], factor * (new - new.mean(dim=1, keepdim=True)), atol=1e-4)


def test_a_common_level_does_not_depend_on_the_scale_that_was_learned():
    teacher, student, own, batch = own_world()
    with torch.no_grad():
        softer = copy.deepcopy(student)
        softer.head.weight[7:] *= 0.1
        softer.head.bias[7:] *= 0.1
    assert levelled(teacher, student, own, batch)
    assert levelled(teacher, softer, own, batch)
    assert torch.allclose(softer.head.weight, student.head.weight, atol=1e-5)
    assert torch.allclose(softer.head.bias, student.head.bias, atol=1e-5)


@pytest.mark.parametrize("why", ["shared classes", "two classes", "no linear layer", "one logit for all"])
def test_where_no_common_level_can_be_found_the_head_stays(why):
    teacher, student, own, batch = own_world()
    if why == "shared classes":
        own = OWN
        student = tiny("convnet-1", list(all_classes(teacher, own)), 2).eval()
    if why == "two classes":
        own = LabelSpace(["hen", "ibis"])
    if why == "no linear layer":
        student.head = torch.nn.Sequential(student.head)
    if why == "one logit for all":
        with torch.no_grad():
            student.head.weight[7:], student.head.bias[7:] = 0, 0
    before = copy.deepcopy(student.head.state_dict())
    assert not levelled(teacher, student, own, batch)
    assert all(torch.equal(before[name], value) for name, value in student.head.state_dict().items())


def test_what_cannot_be_kept_is_refused():
    with pytest.raises(UserError, match="method at cannot keep the teacher's classes"):
        check_keeping(get_method("at"), make_teacher())
    headless = make_teacher()
    headless.head = torch.nn.Identity()
    with pytest.raises(UserError, match="has no head whose classes could be kept"):
        check_keeping(get_method("refilled"), headless)
