"""Images without labels in the losses, against loops over the batch."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from refilled.data import Batches
from refilled.errors import UserError
from refilled.fewshot import RefilledTasks
from refilled.methods import METHODS, get_method
from refilled.methods.imitation import check_unlabelled
from refilled.methods.keeping import all_classes, keeping_stages
from refilled.methods.mixtures import show
from refilled.methods.refilled_settings import FewSettings

from .world import (
    first_batch,
    make_batches,
    make_stages,
    make_student,
    make_teacher,
    tiny,
    values,
)


@pytest.fixture
def world():
    """Batches of 12 images with labels and 5 without."""
    own = make_batches()
    others = torch.randint(0, 256, (9, 3, 8, 8), dtype=torch.uint8)
    batches = Batches(torch.cat([own.source.images, others]), own.labels, 12, unlabelled=5)
    return make_teacher().requires_grad_(False), make_student(), batches


@pytest.mark.parametrize("mixtures", [False, True])
def test_parts_of_what_is_seen(world, mixtures):
    batch = first_batch(world[2])
    seen = show(batch, mixtures)
    own, others = seen.parts(seen.images)
    assert torch.equal(others, batch.images[12:])
    assert torch.equal(own[:12], batch.images[:12])
    assert len(own) == (24 if mixtures else 12)
    logits = torch.randn(len(seen.images), 4)
    alone = show(replace(batch, images=batch.images[:12]), False)
    if not mixtures:
        assert torch.equal(seen.cross_entropy(logits), alone.cross_entropy(logits[:12]))


@pytest.mark.parametrize("mixtures", [False, True])
@pytest.mark.parametrize("number", [0, 1])
def test_both_stages_imitate_on_them_and_nothing_else(world, number, mixtures):
    teacher, student, batches = world
    student.eval()  # else batch statistics, which are of all images, would tie the terms together
    batch = first_batch(batches)
    chosen = {"imitation": 3.0, "imitation_new": 0.5, "imitation_unlabelled": 7.0, "strength": 1.0}
    stage = make_stages("refilled", teacher, student, batches, **chosen, mixtures=mixtures)[number]
    torch.manual_seed(5)
    terms = values(stage, batch)
    torch.manual_seed(5)
    seen = show(batch, mixtures)
    mapped = stage.beside.linear(student.embed(seen.images)).double().detach()
    apart = [
        1 - float(torch.cosine_similarity(a, b, dim=0))
        for a, b in zip(mapped, teacher.embed(seen.images).double())
    ]
    weights = seen.by_class(torch.tensor([3.0, 3.0, 0.5, 0.5])).tolist()
    own = apart[:12] + apart[17:]
    expected = sum(w * a for w, a in zip(weights, own, strict=True)) / len(own) + 7 * sum(apart[12:17]) / 5
    assert terms.pop("imitation") == pytest.approx(expected, rel=1e-4)
    without = replace(batch, images=batch.images[:12], rows=batch.rows[:12])
    torch.manual_seed(5)
    known = values(stage, without)
    known.pop("imitation")
    assert terms == pytest.approx(known, rel=1e-5)


def test_answers_that_are_known_are_used(world):
    teacher, student, batches = world
    batch = first_batch(batches)
    (stage,) = make_stages("refilled-few", teacher, student.eval(), batches)
    known = replace(batch, answers=teacher.embed(batch.images))
    assert values(stage, known) == pytest.approx(values(stage, batch), rel=1e-5)


def test_half_precision_and_gradients(world):
    teacher, student, batches = world
    (stage,) = make_stages("refilled-few", teacher, student, batches, mixtures=True)
    with torch.autocast("cpu", torch.bfloat16):
        total = sum(stage.loss(first_batch(batches)).values())
    total.backward()
    assert all(torch.isfinite(p.grad).all() for p in [*student.parameters(), *stage.beside.parameters()])


def test_the_teachers_classes_are_kept_by_them_too(world):
    teacher, _, batches = world
    method, student = (
        get_method("refilled-few"),
        tiny("convnet-1", list(all_classes(teacher, make_student().classes))),
    )
    student.eval()
    stages = keeping_stages(
        method, teacher, student, make_student().classes, batches, method.settings(), 2, weight=2.0, tau=2.0
    )
    batch = first_batch(batches)
    with torch.no_grad():
        logits, wanted = student(batch.images)[1][:, : len(teacher.classes)], teacher(batch.images)[1]
    expected = (
        2.0 * 4.0 * F.kl_div((logits / 2).log_softmax(1), (wanted / 2).softmax(1), reduction="batchmean")
    )  # of all 17 images
    assert values(stages[0], batch)["keeping"] == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_methods_without_a_use_for_them_say_so(name):
    method = get_method(name)
    if not method.unlabelled:
        with pytest.raises(UserError, match=f"method {name} has no use for images without labels"):
            check_unlabelled(method, method.settings())
    else:
        check_unlabelled(method, method.settings())
        with pytest.raises(UserError, match="imitation_unlabelled is 0"):
            check_unlabelled(method, method.settings(imitation_unlabelled=0.0))
        check_unlabelled(method, method.settings(imitation_unlabelled=0.0, head_unlabelled=1.0))


@pytest.mark.parametrize("name", ["refilled-paper", "refilled-few"])
def test_they_are_imitated_where_no_other_image_is(world, name):
    teacher, student, batches = world
    stages = make_stages(name, teacher, student.eval(), batches, imitation=0.0, imitation_unlabelled=2.0)
    batch = first_batch(batches)
    mapped = stages[-1].beside.linear(student.embed(batch.images[12:])).detach()
    apart = 1 - torch.cosine_similarity(mapped, teacher.embed(batch.images[12:]))
    assert values(stages[-1], batch)["imitation"] == pytest.approx(2 * float(apart.mean()), rel=1e-4)
    assert make_stages(name, teacher, student, make_batches(), imitation=0.0)[-1].beside is None


@pytest.mark.parametrize("name", ["imitation_unlabelled", "head_unlabelled"])
def test_few_shot_students_see_none(name):
    with pytest.raises(UserError, match=f"no images without labels: leave {name}"):
        RefilledTasks(None, None, None, settings=FewSettings(**{name: 1.0}))
