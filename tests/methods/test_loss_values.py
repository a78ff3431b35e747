"""Loss terms and gradients of every stage against a computation written from the text of the method."""

import pytest
import torch

from objectives import reference
from refilled.methods.refilled_settings import TwoStageSettings

from .world import POSTERIORS, WEIGHTS, first_batch, gradients, make_batches, make_stages, make_teacher

CLOSE = {"rtol": 2e-4, "atol": 2e-6}


def expected_scores(teacher, batches, batch, posterior):
    """Teacher's scores for the student's classes, from centres over the images as they are."""
    with torch.no_grad():
        all_embeddings = teacher.embed(batches.source.images.float() / 255).double()
        embeddings = teacher.embed(batch.images).double()
    centres = reference.class_centres(all_embeddings, batches.labels, 4)
    if posterior == "cosine":
        embeddings = 20 * torch.stack([reference.unit_vector(row) for row in embeddings])
    if posterior == "scaled":
        lengths = [float(sum(value**2 for value in row)) ** 0.5 for row in all_embeddings]
        embeddings = embeddings * 10 / (sum(lengths) / len(lengths))
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
    stage = make_stages("refilled-two-stages", teacher, student, batches, **changes)[0]
    settings = TwoStageSettings(**changes)
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
    settings = TwoStageSettings(**changes, strength=1.5)
    stage = make_stages("refilled-two-stages", teacher, student, batches, strength=1.5, **changes)[1]
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
    settings = TwoStageSettings(weight=weight)
    stage = make_stages("refilled-two-stages", teacher, student, batches, weight=weight)[1]
    names = ["cross_entropy", "local_kd"]
    check_terms(stage.loss(batch), expected_terms(names, teacher, student, batches, batch, settings))


def test_joint_stage(teacher, student, batches):
    batch, names = first_batch(batches), ["cross_entropy", "local_kd", "comparison"]
    changes = {"comparison_scale": 0.7, "strength": 3.0, "max_impostors": 4}
    (stage,) = make_stages("refilled-gamma", teacher, student, batches, **changes)
    settings = TwoStageSettings(**changes)
    check_terms(stage.loss(batch), expected_terms(names, teacher, student, batches, batch, settings))
    check_gradients(stage, names, teacher, student, batches, batch, settings)


def test_cross_entropy_stage(student, batches):
    batch = first_batch(batches)
    for stage in (
        make_stages("student", None, student, batches)[0],
        make_stages("refilled-emb", make_teacher(), student, batches)[1],
    ):
        check_terms(stage.loss(batch), expected_terms(["cross_entropy"], None, student, batches, batch, None))
