"""AML, SEED, CRD and SSKD: their terms, and what lies beside the student."""

import copy

import pytest
import torch
from torch.nn import functional as F

from objectives import reference
from objectives import reference_contrastive as slow
from refilled import objectives as of_package
from refilled.errors import UserError
from refilled.methods import get_method
from refilled.methods.sskd import for_turned, with_turned

from .test_stages import run
from .world import (
    TEACHER_CLASSES,
    first_batch,
    make_batches,
    make_stages,
    make_teacher,
    same_state,
    state,
    tiny,
    values,
)

CLOSE = {"rtol": 2e-4, "atol": 2e-5}


def test_an_unknown_loss_is_refused():
    with pytest.raises(UserError, match="loss"):
        get_method("aml").settings(loss="triple")


# --- terms --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [{}, {"margin": 1.2}, {"loss": "triplet"}, {"loss": "triplet", "margin": 0.9, "negatives": 2},
     {"with_itself": False}],
    ids=str,
)  # fmt: skip
def test_asymmetric_term(teacher, student, batches, changes):
    batch = first_batch(batches)
    first, _ = make_stages("aml", teacher, student, batches, **changes)
    triplet = changes.get("loss") == "triplet"
    function = slow.asymmetric_triplet if triplet else slow.asymmetric_contrastive
    expected = function(
        first.beside(student.embed(batch.images)).double(),
        teacher.embed(batch.images).double(),
        batch.labels,
        margin=changes.get("margin", 0.1 if triplet else 0.7),
        negatives=changes.get("negatives", 5),
        with_itself=changes.get("with_itself", True),
    )
    torch.testing.assert_close(first.loss(batch)["asymmetric"].double(), expected, **CLOSE)


def test_a_projection_only_where_the_dimensions_differ(student, batches):
    teacher = tiny("convnet-1", TEACHER_CLASSES, seed=3).eval()
    assert teacher.dim == student.dim
    for name in ("aml", "seed-supervised"):
        stage = make_stages(name, teacher, student, batches)[0]
        assert not list(stage.beside.parameters())
        assert all(torch.tensor(value).isfinite() for value in values(stage, first_batch(batches)).values())
    stage = make_stages("aml", make_teacher(), student, batches)[0]
    assert [tuple(p.shape) for p in stage.beside.parameters()] == [(128, 64), (128,)]


def test_similarities_to_the_queue(teacher, student):
    """Random keys at first, then the teacher's last embeddings, oldest out first; each epoch is 3 batches."""
    batches = make_batches(size=24, batch_size=8)
    stage = make_stages("seed", teacher, student, batches, queue=18)[0]
    project, queue = stage.beside["project"], stage.beside["queue"]
    assert queue.keys.shape == (18, teacher.dim)
    expected_keys = queue.keys.clone()
    assert (expected_keys.norm(dim=1) - 1).abs().max() < 1e-5
    place = 0
    for batch in [*batches.epoch(0), *batches.epoch(1)]:
        teacher_z = teacher.embed(batch.images)
        torch.testing.assert_close(queue.keys, expected_keys)
        expected = slow.similarity_distillation(
            project(student.embed(batch.images)).double(), teacher_z.double(), expected_keys.double()
        )
        torch.testing.assert_close(stage.loss(batch)["similarity"].double(), expected, **CLOSE)
        for z in teacher_z:
            expected_keys[place] = z / z.norm()
            place = (place + 1) % 18
    assert queue.place == place


@pytest.mark.parametrize(("asked", "size"), [(65536, 24), (20, 20), (1, 12)])
def test_size_of_the_queue(teacher, student, batches, asked, size):
    stage = make_stages("seed", teacher, student, batches, queue=asked)[0]
    assert len(stage.beside["queue"].keys) == size


def test_similarities_within_a_batch_and_its_classes(teacher, student, batches):
    batch = first_batch(batches)
    stage = make_stages("seed-supervised", teacher, student, batches, tau_teacher=0.3, tau_student=0.4)[0]
    teacher_z, size = teacher.embed(batch.images).double(), len(batch)
    expected = slow.similarity_distillation(
        stage.beside(student.embed(batch.images)).double(),
        teacher_z,
        teacher_z,
        compared=~torch.eye(size, dtype=torch.bool),
        similar=torch.tensor([[a == b for b in batch.labels] for a in batch.labels]),
        tau_student=0.4,
        tau_teacher=0.3,
    )
    torch.testing.assert_close(stage.loss(batch)["similarity"].double(), expected, **CLOSE)


def test_contrast_with_the_memory(teacher, student, batches, monkeypatch):
    """Both directions, the constants of the first step, and the memories after each step."""
    drawn = []
    draw = of_package.draw_others
    monkeypatch.setattr(of_package, "draw_others", lambda *a: drawn.append(draw(*a)) or drawn[-1])
    (stage,) = make_stages(
        "crd", teacher, student, batches, dim=8, negatives=7, memory_momentum=0.25, weight=0.5
    )
    memory = stage.beside
    assert memory.log_z.isnan().all()
    log_z = None
    for batch in [*batches.epoch(0), *batches.epoch(1)]:
        z, logits = student(batch.images)
        ours = memory.student(z).double()
        theirs = memory.teacher(teacher.embed(batch.images)).double()
        of_student, of_teacher = memory.of_student.double(), memory.of_teacher.double()
        terms = stage.loss(batch)
        assert (batches.labels[drawn[-1]] != batch.labels[:, None]).all()
        assert drawn[-1].shape == (12, 7)
        candidates = torch.cat([batch.rows[:, None], drawn[-1]], dim=1)
        scores = [
            slow.memory_scores(ours, of_teacher, candidates),
            slow.memory_scores(theirs, of_student, candidates),
        ]
        if log_z is None:
            log_z = torch.stack([(24 * s.exp().mean()).log() for s in scores]).detach()
        torch.testing.assert_close(memory.log_z.double(), log_z, **CLOSE)
        for term, s, z in zip((terms["student"], terms["teacher"]), scores, log_z):
            torch.testing.assert_close(term.double(), 0.5 * slow.noise_contrast(s, z, 24), **CLOSE)
        torch.testing.assert_close(terms["cross_entropy"], F.cross_entropy(logits, batch.labels))
        for before, after, seen in (
            (of_student, memory.of_student, ours), (of_teacher, memory.of_teacher, theirs)
        ):  # fmt: skip
            for row, new in zip(batch.rows.tolist(), seen):
                before[row] = reference.unit_vector(
                    0.25 * before[row] + 0.75 * reference.unit_vector(new.detach())
                )
            torch.testing.assert_close(after.double(), before, **CLOSE)
        sum(terms.values()).backward()  # though the memories have changed meanwhile
        assert all(p.grad is not None for p in stage.parameters)


def test_no_more_negatives_than_images_of_other_classes(teacher, student, monkeypatch):
    batches = make_batches(size=24)
    largest = int(torch.bincount(batches.labels).max())
    asked = []
    draw = of_package.draw_others
    monkeypatch.setattr(of_package, "draw_others", lambda *a: asked.append(a[-1].shape[1]) or draw(*a))
    make_stages("crd", teacher, student, batches)[0].loss(first_batch(batches))
    assert asked == [24 - largest]


def test_negatives_are_drawn_anew_and_by_no_generator(teacher, student, batches, monkeypatch):
    """Steps of several trainings need not wait for the one generator of a GPU, and a checkpoint holds all."""
    drawn = []
    draw = of_package.draw_others
    monkeypatch.setattr(of_package, "draw_others", lambda *a: drawn.append(draw(*a)) or drawn[-1])
    (stage,) = make_stages("crd", teacher, student, batches)
    before, batch = torch.get_rng_state(), first_batch(batches)
    stage.loss(batch)
    kept = copy.deepcopy(stage.beside.state_dict())
    stage.loss(batch)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(drawn[0], drawn[1])
    (again,) = make_stages("crd", teacher, student, batches)
    again.beside.load_state_dict(kept)
    again.loss(batch)
    assert torch.equal(drawn[2], drawn[1])
    (other,) = make_stages("crd", teacher, student, make_batches(seed=1))
    other.loss(batch)
    assert not torch.equal(drawn[3], drawn[0])


def test_contrast_refuses_a_single_class(teacher, student):
    batches = make_batches(size=12, classes=1)
    with pytest.raises(UserError, match="at least 2 classes"):
        make_stages("crd", teacher, student, batches)


def test_turned_images():
    images = torch.arange(2 * 3 * 4 * 4).view(2, 3, 4, 4).float()
    turned = with_turned(images)
    assert turned.shape == (8, 3, 4, 4)
    for turns in range(4):
        for number in range(2):
            expected = images[number]
            for _ in range(turns):  # a quarter, against the clock
                expected = expected.transpose(1, 2).flip(1)
            assert torch.equal(turned[2 * turns + number], expected)
    assert for_turned(torch.tensor([7, 9])).tolist() == [7, 9, 7, 9, 7, 9]


@pytest.mark.parametrize("same", [True, False])
def test_self_supervision_terms(student, batches, same):
    teacher = make_teacher(["ibis", "hen", "ant", "fox"] if same else TEACHER_CLASSES)
    batch = first_batch(batches)
    first, second = make_stages("sskd", teacher, student, batches, epochs=10)
    assert (first.epochs, second.epochs) == (2, 8)
    assert first.beside["teacher"] is second.beside["teacher"]
    images, size = with_turned(batch.images), len(batch)
    z, wanted = teacher(images)
    made = first.beside["teacher"](z).double()
    origins, labels = torch.arange(size).repeat(3), batch.labels.repeat(3)
    expected = slow.contrastive_prediction(made[size:], made[:size], origins)
    torch.testing.assert_close(first.loss(batch)["prediction"].double(), expected, **CLOSE)

    terms = second.loss(batch)
    embeddings, logits = student(images)
    ours = second.beside["student"](embeddings).double()
    similarity = 10 * slow.selective_kd(
        slow.contrastive_scores(ours[size:], ours[:size]), slow.contrastive_scores(made[size:], made[:size]),
        origins, tau=0.5, wrong_share=0.75,
    )  # fmt: skip
    torch.testing.assert_close(terms["similarity"].double(), similarity, **CLOSE)
    weight = 0.1 if same else 1.0
    torch.testing.assert_close(terms["cross_entropy"], weight * F.cross_entropy(logits[:size], batch.labels))
    if not same:
        assert list(terms) == ["cross_entropy", "similarity"]
        return
    wanted, logits = wanted[:, [3, 2, 1, 0]].double(), logits.double()
    kd = 0.9 * reference.kd(logits[:size], wanted[:size], tau=4.0)
    turned = 2.7 * slow.selective_kd(logits[size:], wanted[size:], labels, tau=4.0, wrong_share=1.0)
    torch.testing.assert_close(terms["kd"].double(), kd, **CLOSE)
    torch.testing.assert_close(terms["turned"].double(), turned, **CLOSE)


def test_the_teachers_head_is_all_that_its_stage_trains(teacher, student, batches):
    before, guide = state(student), state(teacher)
    first, second = make_stages("sskd", teacher, student, batches)
    head = state(first.beside["teacher"])
    run(first, student, batches, epochs=2)
    assert same_state(student, before)
    assert same_state(teacher, guide)
    learned = state(first.beside["teacher"])
    assert not any(torch.equal(learned[name], head[name]) for name in head)
    run(second, student, batches, epochs=2)
    assert same_state(first.beside["teacher"], learned)
    assert same_state(teacher, guide)
    assert not same_state(student, before)
    assert all(p.grad is None for p in teacher.parameters())
