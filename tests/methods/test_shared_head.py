"""What the teacher's own head says over shared classes, against loops over the batch."""

import pytest
import torch

from refilled.data import Batches
from refilled.errors import UserError
from refilled.fewshot import RefilledTasks
from refilled.methods import get_method
from refilled.methods.keeping import all_classes, keeping_stages
from refilled.methods.mixtures import show
from refilled.methods.refilled_settings import FewSettings

from .world import first_batch, make_batches, make_stages, make_student, make_teacher, tiny, values

OFF = {"head_shared": 0.0, "head_unlabelled": 0.0}


@pytest.fixture
def world():
    """Batches of 12 images with labels and 5 without."""
    own = make_batches()
    others = torch.randint(0, 256, (9, 3, 8, 8), dtype=torch.uint8)
    batches = Batches(torch.cat([own.source.images, others]), own.labels, 12, unlabelled=5)
    return make_teacher().requires_grad_(False), make_student(), batches


def one_by_one(student, teacher, images, tau: float, trusts=None) -> float:
    """Trust times tau² KL over the shared classes, image by image; without trusts, the teacher's."""
    pairs = [
        (here, there)
        for here, name in enumerate(teacher.classes)
        for there, other in enumerate(student.classes)
        if name.lower() == other.lower()
    ]
    assert 1 < len(pairs) < min(len(teacher.classes), len(student.classes))
    total = 0.0
    with torch.no_grad():
        ours, theirs = student(images)[1].double(), teacher(images)[1].double()
    for number, (mine, wanted) in enumerate(zip(ours, theirs)):
        trust = sum(wanted.softmax(0)[here] for here, _ in pairs) if trusts is None else trusts[number]
        target = torch.stack([wanted[here] / tau for here, _ in pairs]).softmax(0)
        given = torch.stack([mine[there] / tau for _, there in pairs]).log_softmax(0)
        total += tau * tau * float(trust * (target * (target.log() - given)).sum())
    return total / len(images)


@pytest.mark.parametrize("mixtures", [False, True])
@pytest.mark.parametrize("imitation", [0.0, 30.0])
@pytest.mark.parametrize(("head", "unlabelled"), [(0.0, 3.0), (2.0, 0.0), (2.0, 3.0)])
def test_the_teachers_head_speaks_of_shared_classes(world, mixtures, imitation, head, unlabelled):
    teacher, student, batches = world
    student.eval()
    batch = first_batch(batches)
    own = {"head_shared": head, "head_unlabelled": unlabelled, "head_tau": 2.0, "mixtures": mixtures}
    own |= {"imitation": 0.0, "imitation_unlabelled": imitation}
    (stage,) = make_stages("refilled-few", teacher, student, batches, **own)
    torch.manual_seed(5)
    terms = values(stage, batch)
    torch.manual_seed(5)
    known, others = (seen := show(batch, mixtures)).parts(seen.images)
    trusts = [float(label in (0, 1)) for label in batch.labels]  # fox and Ant, which the teacher knows
    if mixtures:
        trusts += [
            float(share * trust + (1 - share) * trusts[number - 1])
            for number, (share, trust) in enumerate(zip(seen.shares, trusts[:12]))
        ]
    assert 0 < sum(trusts) < len(trusts)
    expected = head * one_by_one(student, teacher, known, 2.0, trusts)
    expected += unlabelled * one_by_one(student, teacher, others, 2.0)
    assert terms.pop("head") == pytest.approx(expected, rel=1e-4)
    (without,) = make_stages("refilled-few", teacher, student, batches, **(own | OFF))
    torch.manual_seed(5)
    assert values(without, batch) == pytest.approx(terms, rel=1e-5)


def test_it_is_plain_distillation_where_all_classes_are_shared():
    names = ["ant", "bee", "cat", "dog"]
    teacher, student = make_teacher(names).requires_grad_(False), make_student(names[::-1])
    batches = make_batches()
    batch = first_batch(batches)
    student.eval()
    stage = make_stages("refilled", teacher, student, batches, head_shared=3.0)[1]
    plain = make_stages("kd", teacher, student, batches, weight=1.0, tau=4.0)[0]
    assert values(stage, batch)["head"] == pytest.approx(3 * values(plain, batch)["kd"], rel=1e-4)


def test_it_fades_with_the_other_terms(world):
    teacher, student, batches = world
    student.eval()
    batch = first_batch(batches)
    found = {}
    for progress in (0.0, 0.75):
        stage = make_stages("refilled", teacher, student, batches, head_shared=1.0, fade=1.0)[1]
        batch.progress = torch.tensor(progress)
        found[progress] = values(stage, batch)["head"]
    assert found[0.75] == pytest.approx(0.25 * found[0.0], rel=1e-5)


@pytest.mark.parametrize("name", ["head_shared", "head_unlabelled"])
def test_a_head_needs_classes_to_speak_of(world, name):
    teacher, _, batches = world
    for shared, names in enumerate((["w", "x", "y", "z"], ["ant", "x", "y", "z"])):
        with pytest.raises(UserError, match=f"^{name} is .* share, and there are {shared}: leave it out"):
            make_stages("refilled-few", teacher, tiny("convnet-1", names), batches, **{name: 1.0})


def test_of_images_that_are_not_there_it_says_nothing(world):
    (stage,) = make_stages("refilled-few", world[0], make_student(), make_batches(), head_unlabelled=1.0)
    assert "head" not in values(stage, first_batch(make_batches()))


def test_where_old_classes_are_kept_only_shared_ones_count(world):
    """A student that keeps the teacher's classes has a column for each; the new task has only some."""
    teacher, own, batches = world
    chosen = get_method("refilled-few")
    student = tiny("convnet-1", list(all_classes(teacher, own.classes))).eval()
    settings = chosen.settings(head_shared=2.0, imitation=0.0, strength=0.0)
    (stage,) = keeping_stages(
        chosen, teacher, student, own.classes, batches, settings, 4, weight=1.0, tau=2.0
    )
    batch = first_batch(batches)
    found = values(stage, batch)["head"]
    columns = [list(student.classes).index(name) for name in ("fox", "ant")]
    rows = [list(teacher.classes).index(name) for name in ("fox", "ant")]
    with torch.no_grad():
        ours, theirs = student(batch.images[:12])[1].double(), teacher(batch.images[:12])[1].double()
    trust = (batch.labels < 2).double()
    target, given = (theirs[:, rows] / 4).log_softmax(1), (ours[:, columns] / 4).log_softmax(1)
    expected = 2 * 16 * (trust * (target.exp() * (target - given)).sum(1)).mean()
    assert found == pytest.approx(float(expected), rel=1e-4)


def test_few_shot_tasks_have_no_shared_classes():
    with pytest.raises(UserError, match="new to the teacher: leave head_shared out"):
        RefilledTasks(None, None, None, settings=FewSettings(head_shared=1.0))
