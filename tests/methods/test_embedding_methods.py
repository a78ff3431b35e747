"""AML, SEED, CRD, SSKD and BAN: their terms, what lies beside the student, and what a resumed run does."""

import copy
import dataclasses

import pytest
import torch
from torch.nn import functional as F

from objectives import reference
from objectives import reference_contrastive as slow
from refilled import objectives as of_package
from refilled.errors import UserError
from refilled.methods import get_method
from refilled.methods.ban import lifetimes
from refilled.methods.sskd import for_turned, with_turned
from refilled.training import Reporter, TrainSettings, train

from .test_stages import run
from .world import (
    STUDENT_CLASSES,
    TEACHER_CLASSES,
    first_batch,
    make_batches,
    make_stages,
    make_student,
    make_teacher,
    same_state,
    state,
    tiny,
    values,
)

CLOSE = {"rtol": 2e-4, "atol": 2e-5}
DEFAULTS = {
    "aml": {
        "loss": "contrastive", "margin": None, "negatives": 5, "with_itself": True, "embedding_share": 0.5,
    },
    "seed": {"tau_student": 0.2, "tau_teacher": 0.01, "embedding_share": 0.5, "queue": 65536},
    "seed-supervised": {"tau_student": 0.2, "tau_teacher": 0.2, "embedding_share": 0.5},
    "crd": {"weight": 0.8, "dim": 128, "negatives": 16384, "tau": 0.07, "memory_momentum": 0.5},
    "sskd": {
        "cross_entropy_weight": 0.1, "kd_weight": 0.9, "turned_weight": 2.7, "similarity_weight": 10.0,
        "tau": 4.0, "turned_tau": 4.0, "similarity_tau": 0.5, "turned_share": 1.0, "similarity_share": 0.75,
        "head_share": 0.2,
    },
    "ban": {"generations": 1, "tau": 1.0, "label_weight": 0.0},
}  # fmt: skip
NUMBERS = [
    (name, setting)
    for name, found in DEFAULTS.items()
    for setting in found
    if setting not in ("loss", "with_itself")
]
SMALL = {  # what makes a test of the method quick, and whole
    "crd": {"dim": 16},
    "ban": {"generations": 2},
    "refilled": {"imitation": 2.0, "fade": 0.5},
}


def teacher_for(name):
    """Of the same classes where the method needs that; else of others."""
    return make_teacher(STUDENT_CLASSES if name == "ban" else TEACHER_CLASSES)


@pytest.mark.parametrize("name", DEFAULTS)
def test_default_settings(name):
    assert dataclasses.asdict(get_method(name).settings()) == DEFAULTS[name]


@pytest.mark.parametrize(("name", "setting"), NUMBERS)
def test_numbers_without_sense_are_refused_by_name(name, setting):
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(UserError, match=setting):
            get_method(name).settings(**{setting: wrong})


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


# --- generations --------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"tau": 3.0, "label_weight": 0.5}], ids=str)
def test_first_generation_is_taught_by_the_teacher(student, batches, changes):
    teacher, batch = make_teacher(STUDENT_CLASSES), first_batch(batches)
    (stage,) = make_stages("ban", teacher, student, batches, epochs=5, **changes)
    assert (stage.name, stage.epochs, stage.begin, stage.beside) == ("generation 1", 5, None, None)
    logits, wanted = student(batch.images)[1], teacher(batch.images)[1]
    kd = reference.kd(logits.double(), wanted.double(), tau=changes.get("tau", 1.0))
    labels = changes.get("label_weight", 0.0) * F.cross_entropy(logits, batch.labels)
    terms = stage.loss(batch)
    torch.testing.assert_close(terms["kd"].double(), kd, **CLOSE)
    torch.testing.assert_close(terms["cross_entropy"], labels)


def test_each_generation_starts_anew_and_is_taught_by_the_one_before(student, batches):
    teacher, batch = make_teacher(["ibis", "hen", "ant", "fox"]), first_batch(batches)
    made = make_stages("ban", teacher, student, batches, epochs=7, generations=3)
    assert [stage.epochs for stage in made] == [2, 2, 3]
    assert [stage.name for stage in made] == ["generation 1", "generation 2", "generation 3"]
    starts, grown = [state(student)], {}
    for number, stage in enumerate(made):
        if number:
            stage.begin()
            assert same_state(stage.asks, grown)
            assert stage.beside is stage.asks
            assert not any(p.requires_grad for p in stage.asks.parameters())
            starts.append(state(student))
            student.eval()
            expected = reference.kd(
                student(batch.images)[1].double(), stage.asks(batch.images)[1].double(), tau=1.0
            )
            torch.testing.assert_close(stage.loss(batch)["kd"].double(), expected, **CLOSE)
        run(stage, student, batches)
        grown = state(student)
        assert all(not torch.equal(p, starts[-1][n]) for n, p in student.named_parameters())
    weights = [name for name in starts[0] if name.endswith("weight") and starts[0][name].ndim > 1]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert not any(torch.equal(starts[a][name], starts[b][name]) for name in weights)


def test_fresh_weights_follow_from_the_seed(student):
    teacher = make_teacher(STUDENT_CLASSES)

    def start(seed):
        stage = make_stages("ban", teacher, student, make_batches(seed=seed), generations=2)[1]
        torch.rand(3)  # whatever the process draws meanwhile
        kept = state(student)
        stage.begin()
        found = state(student)
        student.load_state_dict(kept)
        return found

    one, same, other = start(0), start(0), start(1)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["head.weight"], other["head.weight"])
    fresh_norm = [value for name, value in one.items() if name.endswith("running_mean")]
    assert all(not value.any() for value in fresh_norm)


@pytest.mark.parametrize(
    ("epochs", "generations", "expected"),
    [(10, 1, [10]), (10, 2, [5, 5]), (10, 3, [3, 3, 4]), (3, 3, [1, 1, 1])],
)
def test_lifetimes(epochs, generations, expected):
    assert lifetimes(epochs, generations) == expected


def test_more_generations_than_epochs_are_refused(student, batches):
    with pytest.raises(UserError, match="3 generations need at least 3 epochs, not 2"):
        make_stages("ban", make_teacher(STUDENT_CLASSES), student, batches, epochs=2, generations=3)


# --- all of them --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DEFAULTS)
@pytest.mark.parametrize("epochs", [2, 5, 11])
def test_epochs_add_up(name, epochs, batches):
    stages = make_stages(name, teacher_for(name), make_student(), batches, epochs, **SMALL.get(name, {}))
    assert sum(stage.epochs for stage in stages) == epochs
    assert all(stage.epochs >= 1 for stage in stages)


@pytest.mark.parametrize("name", DEFAULTS)
def test_making_stages_draws_nothing_from_the_global_generator(name, batches):
    torch.manual_seed(4)
    expected = torch.rand(3)
    teacher, student = teacher_for(name), make_student()
    torch.manual_seed(4)
    make_stages(name, teacher, student, batches, **SMALL.get(name, {}))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("name", "lr"),
    [("aml", 0.01), ("seed", 0.05), ("seed-supervised", 0.05), ("crd", 0.01), ("sskd", 0.05), ("ban", 0.003)],
)
def test_training_lowers_the_loss(name, lr):
    """Teacher and student of different dimensions and, but for BAN, of different classes."""
    student, batches = make_student(), make_batches(size=32, batch_size=32)
    for stage in make_stages(name, teacher_for(name), student, batches, **SMALL.get(name, {})):
        if stage.begin:
            stage.begin()
        batch, measured = first_batch(batches), []
        for _ in range(2):  # queue and memory are filled in the first round
            run(stage, student, batches, epochs=15, lr=lr)
            torch.manual_seed(0)
            measured.append(sum(values(stage, batch).values()))
        assert measured[1] < measured[0] - 1e-3, stage.name


@pytest.mark.parametrize("name", DEFAULTS)
def test_under_bfloat16_autocast(name, batches):
    student = make_student()
    for stage in make_stages(name, teacher_for(name), student, batches, **SMALL.get(name, {})):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            terms = stage.loss(first_batch(batches))
        assert all(term.dtype == torch.float32 for term in terms.values())
        sum(terms.values()).backward()
        for parameter in stage.parameters:
            assert parameter.grad.dtype == torch.float32
            assert parameter.grad.isfinite().all()
        if stage.beside is not None:
            assert all(buffer.dtype != torch.bfloat16 for buffer in stage.beside.buffers())


@pytest.mark.parametrize("name", DEFAULTS)
@pytest.mark.parametrize("classes", ["one", "one image each"])
def test_unusual_batches(name, classes):
    """All images of one class, or each of a class of its own."""
    names = [f"thing {i}" for i in range(8)]
    batches = make_batches(size=64, classes=8, batch_size=8)
    batch, largest = first_batch(batches), torch.bincount(batches.labels).argmax()
    batch.rows = (batches.labels == largest).nonzero()[:8, 0] if classes == "one" else torch.arange(8)
    batch.labels = batches.labels[batch.rows]
    assert (len(batch), len(batch.labels.unique())) == (8, 1 if classes == "one" else 8)
    student = make_student(names)
    teacher = make_teacher(names if name == "ban" else TEACHER_CLASSES)
    for stage in make_stages(name, teacher, student, batches, **SMALL.get(name, {})):
        terms = stage.loss(batch)
        assert all(term.isfinite() for term in terms.values())
        sum(terms.values()).backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in stage.parameters)


@pytest.mark.parametrize("name", DEFAULTS)
def test_asks_only_for_what_can_be_looked_up(name, batches):
    """Where a stage asks, known embeddings are all that it wants of that network."""
    student = make_student()
    for stage in make_stages(name, teacher_for(name), student, batches, **SMALL.get(name, {})):
        if stage.asks is None:
            continue
        batch = first_batch(batches)
        if name not in ("seed", "crd"):  # their second look at a batch would be another
            expected = values(stage, batch)
        batch.answers = stage.asks.embed(batch.images).detach()
        stage.asks.embed_prepared = None  # any use of it would fail
        found = values(stage, batch)
        del stage.asks.embed_prepared
        if name not in ("seed", "crd"):
            assert found == pytest.approx(expected, rel=1e-5)


# --- resumed ------------------------------------------------------------------------------------------


class Crash(Exception):
    pass


class CrashAt(Reporter):
    """Stops the run in the middle of an epoch, before its checkpoint."""

    def __init__(self, stage, epoch):
        self.where, self.stage, self.done = (stage, epoch), -1, 0

    def start(self, index, stages, stage, done, steps):
        self.stage, self.done = index, done

    def epoch(self, record):
        self.done = record["epoch"]

    def step(self, number, loss, lr):
        if (self.stage, self.done) == self.where and number == 2:
            raise Crash


def trained(name, folder, *, resume=False, reporter=None, noise=0):
    torch.manual_seed(noise)
    student, batches = make_student(), make_batches(augment="crop-flip")
    stages = make_stages(name, teacher_for(name), student, batches, epochs=6, **SMALL.get(name, {}))
    torch.rand(noise + 1)
    settings = TrainSettings(epochs=6, lr=0.01, batch_size=12, checkpoint_seconds=0, device="cpu")
    train(stages, student, batches, settings, folder=folder, resume=resume, reporter=reporter)
    return student, stages


@pytest.mark.parametrize("name", [*DEFAULTS, "refilled"])
@pytest.mark.parametrize("where", ["first epoch", "middle", "between the stages", "last epoch"])
def test_an_interrupted_run_goes_on_exactly(name, where, tmp_path):
    whole, stages = trained(name, tmp_path / "whole")
    last = len(stages) - 1
    stage, epoch = {
        "first epoch": (0, 0),
        "middle": (0, max(1, stages[0].epochs - 1)),
        "between the stages": (last, 0),
        "last epoch": (last, stages[-1].epochs - 1),
    }[where]
    if where == "middle" and stages[0].epochs == 1:
        pytest.skip("a stage of one epoch")
    with pytest.raises(Crash):
        trained(name, tmp_path / "cut", reporter=CrashAt(stage, epoch))
    resumed, again = trained(name, tmp_path / "cut", resume=True, noise=5)
    assert same_state(resumed, state(whole))
    for one, other in zip(stages, again):
        if one.beside is not None and one is stages[-1]:
            assert same_state(other.beside, state(one.beside))
