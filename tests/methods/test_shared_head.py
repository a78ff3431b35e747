"""What the teacher's own head says over shared classes, against loops over the batch."""

from dataclasses import dataclass

import pytest
import torch

from refilled.data import Batches
from refilled.errors import UserError
from refilled.fewshot import RefilledTasks
from refilled.methods import get_method
from refilled.methods.keeping import all_classes, keeping_stages
from refilled.methods.mixtures import show
from refilled.methods.refilled_settings import FewSettings, RefilledSettings
from refilled.methods.shared_head import shared_head

from .world import (
    STUDENT_CLASSES,
    first_batch,
    make_batches,
    make_stages,
    make_student,
    make_teacher,
    tiny,
    values,
)

KNOWN = ["fox", "Ant", "dog", "Bee"]
"""Classes of a student that the teacher, which has others beside them, knows all."""
OFF = {"head_same": 0.0, "head_unlabelled": 0.0}


def make_world(classes):
    """Batches of 12 images with labels and 5 without."""
    own = make_batches()
    others = torch.randint(0, 256, (9, 3, 8, 8), dtype=torch.uint8)
    batches = Batches(torch.cat([own.source.images, others]), own.labels, 12, unlabelled=5)
    return make_teacher().requires_grad_(False), make_student(classes).eval(), batches


def one_by_one(student, teacher, images, tau: float) -> float:
    """Mean of trust times tau² KL over the shared classes, image by image."""
    pairs = [
        (here, there)
        for here, name in enumerate(teacher.classes)
        for there, other in enumerate(student.classes)
        if name.lower() == other.lower()
    ]
    assert 1 < len(pairs) < len(teacher.classes)
    total = 0.0
    with torch.no_grad():
        ours, theirs = student(images)[1].double(), teacher(images)[1].double()
    for mine, wanted in zip(ours, theirs):
        trust = sum(wanted.softmax(0)[here] for here, _ in pairs)
        target = torch.stack([wanted[here] / tau for here, _ in pairs]).softmax(0)
        given = torch.stack([mine[there] / tau for _, there in pairs]).log_softmax(0)
        total += tau * tau * float(trust * (target * (target.log() - given)).sum())
    return total / len(images)


@pytest.mark.parametrize("mixtures", [False, True])
@pytest.mark.parametrize("imitation", [0.0, 30.0])
@pytest.mark.parametrize(
    ("classes", "same", "unlabelled"),
    [(STUDENT_CLASSES, 0.0, 3.0), (KNOWN, 0.0, 3.0), (KNOWN, 2.0, 0.0), (KNOWN, 2.0, 3.0)],
)
def test_the_teachers_head_speaks_of_shared_classes(mixtures, imitation, classes, same, unlabelled):
    teacher, student, batches = make_world(classes)
    batch = first_batch(batches)
    own = {"head_same": same, "head_unlabelled": unlabelled, "head_tau": 2.0, "mixtures": mixtures}
    own |= {"imitation": 0.0, "imitation_unlabelled": imitation}
    (stage,) = make_stages("refilled-few", teacher, student, batches, **own)
    torch.manual_seed(5)
    terms = values(stage, batch)
    torch.manual_seed(5)
    seen = show(batch, mixtures)
    known, others = seen.parts(seen.images)
    expected = same * one_by_one(student, teacher, known, 2.0)
    expected += unlabelled * one_by_one(student, teacher, others, 2.0)
    assert terms.pop("head") == pytest.approx(expected, rel=1e-4)
    (without,) = make_stages("refilled-few", teacher, student, batches, **(own | OFF))
    torch.manual_seed(5)
    assert values(without, batch) == pytest.approx(terms, rel=1e-5)


def test_with_the_same_classes_it_is_plain_distillation():
    names = ["ant", "bee", "cat", "dog"]
    teacher, student = make_teacher(names).requires_grad_(False), make_student(names[::-1]).eval()
    batches = make_batches()
    batch = first_batch(batches)
    stage = make_stages("refilled", teacher, student, batches, head_same=3.0)[1]
    plain = make_stages("kd", teacher, student, batches, weight=1.0, tau=4.0)[0]
    assert values(stage, batch)["head"] == pytest.approx(3 * values(plain, batch)["kd"], rel=1e-4)


@pytest.mark.parametrize("share", [0.25, 1.0])
@pytest.mark.parametrize("progress", [0.0, 0.5])
def test_a_share_takes_the_place_of_cross_entropy(share, progress):
    """(1 - a) cross-entropy + a KD, where a fades."""
    teacher, student, batches = make_world(KNOWN)
    batch = first_batch(batches)
    batch.progress = torch.tensor(progress)
    found, beside = (
        values(make_stages("refilled", teacher, student, batches, fade=1.0, **own)[1], batch)
        for own in ({"head_share": share}, {"head_same": 1.0})
    )
    left = share * (1 - progress)
    assert found["cross_entropy"] == pytest.approx((1 - left) * beside["cross_entropy"], rel=1e-5)
    assert found["head"] == pytest.approx(share * beside["head"], rel=1e-5)
    assert found["imitation"] == pytest.approx(beside["imitation"], rel=1e-5)


def test_a_share_and_a_weight_are_not_given_together():
    with pytest.raises(UserError, match="two ways to weigh one term: give one"):
        RefilledSettings(head_same=1.0, head_share=0.5)
    with pytest.raises(UserError, match="head_share"):
        RefilledSettings(head_share=1.5)


def test_a_weight_that_is_given_stands_instead_of_the_usual_share():
    assert (RefilledSettings().head_same, RefilledSettings().head_share) == (0, 0.9)
    assert RefilledSettings(head_same=4.0).head_share == 0
    assert RefilledSettings(head_share=0.0).head_share == 0
    for name in ("refilled-two-stages", "refilled-few", "refilled-paper"):
        assert get_method(name).settings().head_share == 0  # stays what it was
        assert get_method(name).settings(head_share=None).head_share == 0


def test_by_default_the_head_speaks_where_it_knows_all_classes():
    for classes, heard in ((KNOWN, True), (STUDENT_CLASSES, False)):
        teacher, student, batches = make_world(classes)
        found = values(make_stages("refilled", teacher, student, batches)[1], first_batch(batches))
        assert ("head" in found) == heard


def test_it_fades_with_the_other_terms():
    teacher, student, batches = make_world(KNOWN)
    batch = first_batch(batches)
    found = {}
    for progress in (0.0, 0.75):
        stage = make_stages("refilled", teacher, student, batches, head_same=1.0, fade=1.0)[1]
        batch.progress = torch.tensor(progress)
        found[progress] = values(stage, batch)["head"]
    assert found[0.75] == pytest.approx(0.25 * found[0.0], rel=1e-5)


@pytest.mark.parametrize("head_fade", [0.0, 0.5])
def test_it_may_fade_at_a_pace_of_its_own(head_fade):
    """(1 - a) cross-entropy + a KD, where a fades by its own share, and imitation by the usual one."""
    teacher, student, batches = make_world(KNOWN)
    batch = first_batch(batches)
    found = []
    for progress in (0.0, 0.75):
        own = {"head_share": 0.8, "head_fade": head_fade, "fade": 1.0}
        batch.progress = torch.tensor(progress)
        found.append(values(make_stages("refilled", teacher, student, batches, **own)[1], batch))
    left = 1 - 0.75 * head_fade
    assert found[1]["head"] == pytest.approx(left * found[0]["head"], rel=1e-5)
    assert found[1]["imitation"] == pytest.approx(0.25 * found[0]["imitation"], rel=1e-5)
    labels = found[0]["cross_entropy"] / (1 - 0.8)
    assert found[1]["cross_entropy"] == pytest.approx((1 - 0.8 * left) * labels, rel=1e-5)


def test_a_head_needs_classes_to_speak_of():
    teacher, _, batches = make_world(KNOWN)
    for shared, names in enumerate((["w", "x", "y", "z"], ["ant", "x", "y", "z"])):
        with pytest.raises(UserError, match=f"^head_unlabelled .* share, and there are {shared}: leave it"):
            make_stages("refilled-few", teacher, tiny("convnet-1", names), batches, head_unlabelled=1.0)


def test_of_one_class_there_is_nothing_to_say():
    one, batches = tiny("convnet-1", ["ant"]), make_batches(classes=1)
    assert shared_head(make_teacher(), one, batches, FewSettings(head_same=1.0)) is None


def test_with_new_classes_there_is_no_such_term_and_asking_for_it_is_refused():
    @dataclass(frozen=True)
    class Usual(RefilledSettings):
        head_share: float = 0.5

    teacher, student, batches = make_world(STUDENT_CLASSES)
    assert shared_head(teacher, student, batches, Usual()) is None
    assert shared_head(teacher, student, batches, Usual(head_share=0.0)) is None
    for own in ({"head_share": 0.8}, {"head_share": 0.0, "head_same": 2.5}):
        with pytest.raises(UserError, match=r"=(0.8|2.5) is for .*, and 2 of them are new to it: leave it"):
            shared_head(teacher, student, batches, Usual(**own))
    for name in ("head_tau", "head_fade"):
        with pytest.raises(UserError, match=rf"{name}=0.5 is for .* not asked here: 2 of .* Leave it out"):
            shared_head(teacher, student, batches, Usual(**{name: 0.5}))


def test_of_images_that_are_not_there_it_says_nothing():
    batches = make_batches()
    (stage,) = make_stages("refilled-few", make_teacher(), make_student(), batches, head_unlabelled=1.0)
    assert "head" not in values(stage, first_batch(batches))


def test_where_old_classes_are_kept_only_the_students_own_count():
    """A student that keeps the teacher's classes has a column for each of them."""
    teacher, own, batches = make_world(KNOWN)
    chosen = get_method("refilled-few")
    student = tiny("convnet-1", list(all_classes(teacher, own.classes))).eval()
    settings = chosen.settings(head_same=2.0, imitation=0.0, strength=0.0)
    (stage,) = keeping_stages(
        chosen, teacher, student, own.classes, batches, settings, 4, weight=1.0, tau=2.0
    )
    batch = first_batch(batches)
    rows = [list(teacher.classes).index(name.lower()) for name in KNOWN]
    columns = [list(student.classes).index(name.lower()) for name in KNOWN]
    with torch.no_grad():
        ours, theirs = student(batch.images[:12])[1].double(), teacher(batch.images[:12])[1].double()
    trust = theirs.softmax(1)[:, rows].sum(1)
    target, given = (theirs[:, rows] / 4).log_softmax(1), (ours[:, columns] / 4).log_softmax(1)
    expected = 2 * 16 * (trust * (target.exp() * (target - given)).sum(1)).mean()
    assert values(stage, batch)["head"] == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("name", ["head_same", "head_share", "head_tau", "head_fade"])
def test_few_shot_tasks_have_no_shared_classes(name):
    with pytest.raises(UserError, match=f"new to the teacher: leave {name} out"):
        RefilledTasks(None, None, None, settings=FewSettings(**{name: 1.0}))
