"""Loss terms and gradients of every stage against a computation written from the text of the method."""

import itertools

import pytest
import torch
from torch.nn import functional as F

from objectives import reference
from refilled.methods.refilled import ClassifierTerm, RefilledSettings

from .world import first_batch, gradients, make_batches, make_stages, make_student, make_teacher, values

POSTERIORS = ("dot", "cosine", "literal")
WEIGHTS = ("head", "pl", "gap", "none")
CLOSE = {"rtol": 2e-4, "atol": 2e-6}


@pytest.fixture
def teacher():
    return make_teacher()


@pytest.fixture
def student():
    return make_student()


@pytest.fixture
def batches():
    return make_batches()


def expected_scores(teacher, batches, batch, posterior):
    """Teacher's scores for the student's classes, from centres over the images as they are."""
    with torch.no_grad():
        all_embeddings = teacher.embed(batches.images.float() / 255).double()
        embeddings = teacher.embed(batch.images).double()
    centres = reference.class_centres(all_embeddings, batches.labels, 4)
    if posterior == "cosine":
        embeddings = 20 * torch.stack([reference.unit_vector(row) for row in embeddings])
    scores = reference.class_scores(embeddings, centres)
    return reference.class_posterior(scores) if posterior == "literal" else scores


def expected_local_kd(teacher, batches, batch, logits, settings):
    """λ times the mean of (λ_i / λ) KL; differentiable in the student's logits, not in the weights."""
    scores = expected_scores(teacher, batches, batch, settings.posterior)
    taus = {"tau_student": settings.tau_student, "tau_teacher": settings.tau_teacher}
    if settings.weight == "head":
        with torch.no_grad():
            own = teacher(batch.images)[1].double()
        weights = reference.confidence_weights(own, min_max=True)
    elif settings.weight == "pl":
        weights = reference.confidence_weights(scores, batch.labels, tau=settings.tau_teacher)
    elif settings.weight == "gap":
        weights = reference.gap_weights(logits.detach(), scores, batch.labels, **taus)
    else:
        weights = None
    return settings.strength * reference.local_kd(logits, scores, batch.labels, weights=weights, **taus)


def expected_comparison(teacher, batch, embeddings, settings):
    with torch.no_grad():
        teacher_z = teacher.embed(batch.images).double()
    return settings.comparison_scale * reference.comparison_matching(
        embeddings,
        teacher_z,
        batch.labels,
        tau_student=settings.comparison_tau_student,
        tau_teacher=settings.comparison_tau_teacher,
        margin=settings.margin,
        max_impostors=settings.max_impostors,
    )


def expected_terms(names, teacher, student, batches, batch, settings):
    """The named terms by the loops, from one pass of the student."""
    z, logits = student(batch.images)
    z, logits = z.double(), logits.double()
    makers = {
        "cross_entropy": lambda: -logits.log_softmax(1)[range(len(batch)), batch.labels].mean(),
        "local_kd": lambda: expected_local_kd(teacher, batches, batch, logits, settings),
        "comparison": lambda: expected_comparison(teacher, batch, z, settings),
    }
    return {name: makers[name]() for name in names}


def check_terms(found, expected):
    assert list(found) == list(expected)
    for name, term in found.items():
        assert term.shape == ()
        assert term.dtype == torch.float32
        torch.testing.assert_close(
            term.double(), expected[name], **CLOSE, msg=lambda m, name=name: f"{name}: {m}"
        )


def check_gradients(stage, names, teacher, student, batches, batch, settings):
    found = gradients(sum(stage.loss(batch).values()), student)
    loops = expected_terms(names, teacher, student, batches, batch, settings)
    expected = gradients(sum(loops.values()), student)
    for name, gradient in found.items():
        if gradient is None or expected[name] is None:
            assert gradient is None, name
            assert expected[name] is None or not expected[name].any(), name
        else:
            torch.testing.assert_close(
                gradient, expected[name], rtol=5e-3, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}"
            )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"comparison_tau_teacher": 2.0, "comparison_tau_student": 1.0},
        {
            "comparison_tau_teacher": 4.0,
            "comparison_tau_student": 4.0,
            "comparison_scale": 1000.0,
            "margin": 0.2,
        },
        {"max_impostors": 1},
        {"max_impostors": 3, "margin": 0.4, "comparison_scale": 3.0},
    ],
    ids=str,
)
def test_first_stage(teacher, student, changes, seed):
    batches = make_batches(size=24 + seed)
    batch = first_batch(batches)
    stage = make_stages("refilled", teacher, student, batches, **changes)[0]
    settings = RefilledSettings(**changes)
    expected = expected_terms(["comparison"], teacher, student, batches, batch, settings)
    assert expected["comparison"] > 0
    check_terms(stage.loss(batch), expected)
    check_gradients(stage, ["comparison"], teacher, student, batches, batch, settings)


@pytest.mark.parametrize("taus", [(2.0, 1.0), (0.5, 3.0)])
@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_second_stage(teacher, student, batches, posterior, weight, taus):
    changes = {"posterior": posterior, "weight": weight, "tau_teacher": taus[0], "tau_student": taus[1]}
    batch, names = first_batch(batches), ["cross_entropy", "local_kd"]
    settings = RefilledSettings(**changes, strength=1.5)
    stage = make_stages("refilled", teacher, student, batches, strength=1.5, **changes)[1]
    check_terms(stage.loss(batch), expected_terms(names, teacher, student, batches, batch, settings))
    check_gradients(stage, names, teacher, student, batches, batch, settings)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_second_stage_where_the_batch_lacks_classes(teacher, student, weight):
    """Only the classes in the batch are compared: those of another batch may not matter."""
    batches = make_batches()
    batch = first_batch(batches)
    keep = (batch.labels == 0) | (batch.labels == 2)
    batch.images, batch.labels = batch.images[keep], batch.labels[keep]
    assert set(batch.labels.tolist()) == {0, 2}
    settings = RefilledSettings(weight=weight)
    stage = make_stages("refilled", teacher, student, batches, weight=weight)[1]
    names = ["cross_entropy", "local_kd"]
    check_terms(stage.loss(batch), expected_terms(names, teacher, student, batches, batch, settings))


def test_joint_stage(teacher, student, batches):
    batch, names = first_batch(batches), ["cross_entropy", "local_kd", "comparison"]
    changes = {"comparison_scale": 0.7, "strength": 3.0, "max_impostors": 4}
    (stage,) = make_stages("refilled-gamma", teacher, student, batches, **changes)
    settings = RefilledSettings(**changes)
    check_terms(stage.loss(batch), expected_terms(names, teacher, student, batches, batch, settings))
    check_gradients(stage, names, teacher, student, batches, batch, settings)


def test_cross_entropy_stage(student, batches):
    batch = first_batch(batches)
    for stage in (
        make_stages("student", None, student, batches)[0],
        make_stages("refilled-emb", make_teacher(), student, batches)[1],
    ):
        check_terms(stage.loss(batch), expected_terms(["cross_entropy"], None, student, batches, batch, None))


# --- options do something -----------------------------------------------------------------------------


def test_every_posterior_and_weight_has_a_value_of_its_own(teacher, student, batches):
    batch = first_batch(batches)
    found = {
        (posterior, weight): values(
            make_stages("refilled-lkd", teacher, student, batches, posterior=posterior, weight=weight)[0],
            batch,
        )["local_kd"]
        for posterior, weight in itertools.product(POSTERIORS, WEIGHTS)
    }
    ordered = sorted(found.values())
    assert all(after - before > 1e-5 for before, after in itertools.pairwise(ordered)), found


@pytest.mark.parametrize(
    "change",
    [
        {"comparison_tau_teacher": 0.3},
        {"comparison_tau_student": 0.3},
        {"margin": 0.05},
        {"max_impostors": 2},
    ],
    ids=str,
)
def test_options_of_the_first_stage_change_its_value(teacher, student, batches, change):
    batch = first_batch(batches)
    usual, changed = (make_stages("refilled", teacher, student, batches, **c)[0] for c in ({}, change))
    assert abs(values(usual, batch)["comparison"] - values(changed, batch)["comparison"]) > 1e-5


@pytest.mark.parametrize("change", [{"tau_teacher": 1.0}, {"tau_student": 2.0}], ids=str)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_temperatures_of_the_second_stage_change_its_value(teacher, student, batches, weight, change):
    batch = first_batch(batches)
    usual, changed = (
        make_stages("refilled-lkd", teacher, student, batches, weight=weight, **c)[0] for c in ({}, change)
    )
    assert abs(values(usual, batch)["local_kd"] - values(changed, batch)["local_kd"]) > 1e-4


def test_strength_and_scale_are_factors_of_their_terms_alone(teacher, student, batches):
    batch = first_batch(batches)
    usual = values(make_stages("refilled-gamma", teacher, student, batches, strength=1.0)[0], batch)
    other = values(
        make_stages("refilled-gamma", teacher, student, batches, strength=3.0, comparison_scale=5.0)[0], batch
    )
    assert other["cross_entropy"] == usual["cross_entropy"]
    assert other["local_kd"] == pytest.approx(3 * usual["local_kd"], rel=1e-6)
    assert other["comparison"] == pytest.approx(5 * usual["comparison"], rel=1e-6)


# --- class centres and weights ------------------------------------------------------------------------


@pytest.mark.parametrize("augment", ["none", "crop-flip", "resized-crop-flip"])
def test_centres_are_those_of_the_training_images_as_they_are(teacher, augment):
    """More images than the centres are made from at once, each counted once, whatever the augmentation."""
    batches = make_batches(size=300, batch_size=64, augment=augment)
    term = ClassifierTerm(teacher, batches, 4, RefilledSettings())
    with torch.no_grad():
        embeddings = teacher.embed(batches.images.float() / 255)
    expected = torch.stack([embeddings[batches.labels == c].mean(dim=0) for c in range(4)])
    torch.testing.assert_close(term.centres, expected, rtol=1e-4, atol=1e-5)
    assert not term.centres.requires_grad


def test_centres_are_made_once_for_the_whole_stage(teacher, student, batches):
    stage = make_stages("refilled-lkd", teacher, student, batches)[0]
    batch = first_batch(batches)
    before = values(stage, batch)
    batches.images = torch.zeros_like(batches.images)
    assert values(stage, batch) == before


@pytest.mark.parametrize("classes", [1, 2, 4, 9])
def test_head_weights_with_a_teacher_of_any_number_of_classes(student, batches, classes):
    teacher = make_teacher([f"thing {i}" for i in range(classes)])
    batch = first_batch(batches)
    term = ClassifierTerm(teacher, batches, 4, RefilledSettings())
    z, own = teacher(batch.images)
    weights = term.weights(student(batch.images)[1], z, term.scores(z), batch.labels)
    confidence = own.double().softmax(1).amax(1)
    raw = 2 * confidence / (1 + confidence)  # 2 σ(log p)
    if classes == 1:
        assert weights.tolist() == [1.0] * len(batch)
    else:
        torch.testing.assert_close(
            weights.double(), (raw - raw.min()) / (raw.max() - raw.min()), rtol=1e-3, atol=1e-4
        )
        assert weights.min() == 0
        assert weights.max() == 1
    assert not weights.requires_grad


@pytest.mark.parametrize("weight", WEIGHTS)
def test_a_class_without_training_images_does_no_harm(teacher, weight):
    student = make_student(["fox", "ant", "hen", "ibis", "jay"])
    batches = make_batches()
    for posterior in POSTERIORS:
        stage = make_stages("refilled-lkd", teacher, student, batches, posterior=posterior, weight=weight)[0]
        terms = stage.loss(first_batch(batches))
        assert all(term.isfinite() for term in terms.values())
        assert all(g.isfinite().all() for g in gradients(sum(terms.values()), student).values())


def test_both_networks_see_the_same_augmented_pixels(teacher, student, monkeypatch):
    batches = make_batches(augment="crop-flip")
    seen = {"teacher": [], "student": []}
    for name, network in (("teacher", teacher), ("student", student)):

        def spy(images, name=name, embed=network.embed):
            seen[name].append(images)
            return embed(images)

        monkeypatch.setattr(network, "embed", spy)
    stages = make_stages("refilled", teacher, student, batches)
    seen["teacher"].clear()  # those of the class centres
    for stage in stages:
        batch = first_batch(batches)
        stage.loss(batch)
        for images in (seen["teacher"].pop(), seen["student"].pop()):
            assert torch.equal(images, batch.images)
    assert seen == {"teacher": [], "student": []}


# --- unusual batches and precision --------------------------------------------------------------------


def unusual(kind):
    batches = make_batches(size=16)
    batch = first_batch(batches)
    if kind == "every class once":
        rows = torch.stack([(batches.labels == c).nonzero()[0, 0] for c in range(4)])
    elif kind == "one class":
        rows = (batches.labels == 1).nonzero()[:, 0]
    else:
        rows = torch.tensor([0, 1, 0, 1, 0])
    batch.images, batch.labels, batch.rows = batches.images[rows].float() / 255, batches.labels[rows], rows
    return batches, batch


@pytest.mark.parametrize("kind", ["every class once", "one class", "duplicates"])
@pytest.mark.parametrize("name", ["refilled", "refilled-gamma", "refilled-paper", "refilled-authors"])
def test_unusual_batches_give_finite_losses_and_gradients(teacher, student, name, kind):
    batches, batch = unusual(kind)
    for stage in make_stages(name, teacher, student, batches):
        terms = stage.loss(batch)
        found = gradients(sum(terms.values()), student)
        assert all(term.isfinite() for term in terms.values())
        assert all(g is None or g.isfinite().all() for g in found.values())
        if "comparison" in terms and kind != "duplicates":
            assert terms["comparison"] == 0  # no tuple in it
        if "local_kd" in terms and kind == "one class":
            assert terms["local_kd"].abs() < 1e-6  # one class leaves nothing to prefer
        if stage.name == "embedding" and kind != "duplicates":
            assert all(g is None or not g.any() for g in found.values())


@pytest.mark.parametrize(
    "name", ["student", "refilled", "refilled-gamma", "refilled-paper", "refilled-authors"]
)
def test_under_bfloat16_autocast(teacher, student, batches, name):
    batch = first_batch(batches)
    for stage in make_stages(name, teacher, student, batches):
        full = values(stage, batch)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            terms = stage.loss(batch)
        assert list(terms) == list(full)
        for term, value in zip(terms.values(), full.values()):
            assert term.dtype == torch.float32
            assert term.item() == pytest.approx(value, rel=0.2, abs=0.02)
        found = gradients(sum(terms.values()), student)
        trained = {id(parameter) for parameter in stage.parameters}
        for parameter_name, parameter in student.named_parameters():
            if id(parameter) in trained:
                assert found[parameter_name].isfinite().all()


def test_stages_made_under_autocast_have_centres_in_full_precision(teacher, batches):
    plain = ClassifierTerm(teacher, batches, 4, RefilledSettings())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        term = ClassifierTerm(teacher, batches, 4, RefilledSettings())
    assert term.centres.dtype == torch.float32
    assert F.cosine_similarity(term.centres, plain.centres).min() > 0.99
