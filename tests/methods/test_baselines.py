"""The well-known baselines: values of their terms, and which teachers they take."""

import pytest
import torch

from objectives import reference_baselines as slow
from refilled.errors import UserError
from refilled.methods import get_method

from .test_default_settings import DEFAULTS
from .test_kd import permuted
from .world import (
    SAME_CLASSES,
    STUDENT_CLASSES,
    first_batch,
    gradients,
    make_stages,
    make_teacher,
    values,
)

CLOSE = {"rtol": 2e-4, "atol": 1e-5}


def cross_entropy(logits, labels):
    return -logits.double().log_softmax(1)[range(len(labels)), labels].mean()


@pytest.mark.parametrize("changes", [{}, {"distance_weight": 2.0, "angle_weight": 3.0}], ids=str)
def test_relations_against_the_loops(teacher, student, batches, changes):
    batch = first_batch(batches)
    first, second = make_stages("rkd", teacher, student, batches, epochs=5, **changes)
    assert (first.epochs, second.epochs) == (2, 3)
    settings = DEFAULTS["rkd"] | changes
    student_z, teacher_z = student.embed(batch.images).double(), teacher.embed(batch.images).double()
    terms = first.loss(batch)
    distance = settings["distance_weight"] * slow.rkd_distance(student_z, teacher_z)
    angle = settings["angle_weight"] * slow.rkd_angle(student_z, teacher_z)
    torch.testing.assert_close(terms["distance"].double(), distance, **CLOSE)
    torch.testing.assert_close(terms["angle"].double(), angle, **CLOSE)
    found, expected = gradients(sum(terms.values()), student), gradients(distance + angle, student)
    for parameter, gradient in found.items():
        if gradient is None:
            assert parameter.startswith("head.")
        else:
            torch.testing.assert_close(gradient, expected[parameter], rtol=1e-3, atol=1e-4)


def test_relations_beside_cross_entropy(teacher, student, batches):
    batch = first_batch(batches)
    (stage,) = make_stages("rkd", teacher, student, batches, epochs=1, embedding_share=0.0)
    assert (stage.name, stage.epochs, stage.judge, stage.asks) == ("joint", 1, "classifier", teacher)
    assert {id(p) for p in stage.parameters} == {id(p) for p in student.parameters()}
    terms = stage.loss(batch)
    assert list(terms) == ["cross_entropy", "distance", "angle"]
    student_z, teacher_z = student.embed(batch.images).double(), teacher.embed(batch.images).double()
    expected = cross_entropy(student(batch.images)[1], batch.labels)
    expected += 25 * slow.rkd_distance(student_z, teacher_z) + 50 * slow.rkd_angle(student_z, teacher_z)
    torch.testing.assert_close(sum(terms.values()).double(), expected, **CLOSE)
    found, wanted = gradients(sum(terms.values()), student), gradients(expected, student)
    for parameter, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[parameter], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("maps", [True, False])
def test_similarities_against_the_loop(teacher, student, batches, maps):
    """Of the last feature maps, or of embeddings where one of the networks makes its own."""
    if not maps:
        own = type("Own", (type(teacher),), {"embed_prepared": type(teacher).embed_prepared})
        own.embed_prepared = lambda self, prepared: self.feature_maps(prepared)[-1].amax(dim=(2, 3))
        teacher.__class__ = own
    batch = first_batch(batches)
    (stage,) = make_stages("sp", teacher, student, batches, weight=7.0)
    terms = stage.loss(batch)
    _, logits = student(batch.images)
    if maps:
        compared = [network.features(batch.images)[-1].flatten(1) for network in (student, teacher)]
    else:
        compared = [network.embed(batch.images) for network in (student, teacher)]
    expected = 7 * slow.similarity_preserving(*(x.detach().double() for x in compared))
    torch.testing.assert_close(terms["similarity"].double(), expected, **CLOSE)
    torch.testing.assert_close(terms["cross_entropy"].double(), cross_entropy(logits, batch.labels), **CLOSE)


@pytest.mark.parametrize(
    ("name", "changes"),
    [("dkd", {}), ("dkd", {"tau": 2.0, "alpha": 3.0, "beta": 0.5}), ("dist", {}),
     ("dist", {"tau": 1.0, "beta": 1.0, "gamma": 0.5}), ("kd-standardised", {}),
     ("kd-standardised", {"tau": 3.0, "weight": 2.0, "cross_entropy_weight": 1.0})],
    ids=str,
)  # fmt: skip
def test_logits_against_the_loops(student, batches, name, changes):
    teacher, batch = make_teacher(STUDENT_CLASSES), first_batch(batches)
    (stage,) = make_stages(name, teacher, student, batches, epochs=6, **changes)
    assert (stage.epochs, stage.judge) == (6, "classifier")
    assert {id(p) for p in stage.parameters} == {id(p) for p in student.parameters()}
    settings = DEFAULTS[name] | changes
    logits, wanted = student(batch.images)[1].double(), teacher(batch.images)[1].double()
    weight = settings.pop("cross_entropy_weight", 1.0)
    settings.pop("warm_up", None)  # all of the term counts outside of a training
    if name == "kd-standardised":
        term = settings["weight"] * slow.standardised_kd(logits, wanted, tau=settings["tau"])
    elif name == "dkd":
        term = slow.dkd(logits, wanted, batch.labels, **settings)
    else:
        term = slow.dist(logits, wanted, **settings)
    terms = stage.loss(batch)
    assert list(terms) == ["cross_entropy", {"kd-standardised": "kd"}.get(name, name)]
    first, second = terms.values()
    torch.testing.assert_close(first.double(), weight * cross_entropy(logits, batch.labels), **CLOSE)
    torch.testing.assert_close(second.double(), term, **CLOSE)


@pytest.mark.parametrize(
    ("warm_up", "progress", "share"),
    [
        (0.5, 0.0, 0.0),
        (0.5, 0.1, 0.2),
        (0.5, 0.5, 1.0),
        (0.5, 0.9, 1.0),
        (0.0, 0.0, 1.0),
        (20 / 240, 1 / 24, 0.5),
    ],
)
def test_warm_up_of_the_decoupled_term(student, batches, warm_up, progress, share):
    teacher, batch = make_teacher(STUDENT_CLASSES), first_batch(batches)
    (stage,) = make_stages("dkd", teacher, student, batches, warm_up=warm_up)
    whole = values(stage, batch)
    batch.progress = torch.tensor(progress)
    found = values(stage, batch)
    assert found["dkd"] == pytest.approx(share * whole["dkd"], rel=1e-5)
    assert found["cross_entropy"] == whole["cross_entropy"]


@pytest.mark.parametrize("name", SAME_CLASSES)
def test_teacher_may_have_its_classes_in_any_order(student, batches, name):
    teacher, batch = make_teacher(STUDENT_CLASSES), first_batch(batches)
    (straight,) = make_stages(name, teacher, student, batches)
    other = permuted(teacher, [1, 3, 0, 2])
    get_method(name).check(other, student)
    (stage,) = make_stages(name, other, student, batches)
    assert values(stage, batch) == pytest.approx(values(straight, batch), rel=1e-4)
    other.classes = teacher.classes  # the same head under wrong names: the order does matter
    (wrong,) = make_stages(name, other, student, batches)
    assert values(wrong, batch) != pytest.approx(values(straight, batch), rel=1e-3)


@pytest.mark.parametrize("name", SAME_CLASSES)
def test_other_classes_are_refused_in_the_name_of_the_method(teacher, student, name):
    with pytest.raises(UserError, match=f"^{name} needs a teacher of the same classes: only the teacher"):
        get_method(name).check(teacher, student)


@pytest.mark.parametrize("name", ["rkd", "sp"])
def test_any_classes_are_taken(teacher, student, batches, name):
    get_method(name).check(teacher, student)
    for stage in make_stages(name, teacher, student, batches):
        assert all(torch.tensor(value).isfinite() for value in values(stage, first_batch(batches)).values())


@pytest.mark.parametrize("name", ["rkd", "sp", "dkd", "dist", "kd-standardised"])
def test_under_bfloat16_autocast(student, batches, name):
    teacher, batch = make_teacher(STUDENT_CLASSES), first_batch(batches)
    for stage in make_stages(name, teacher, student, batches):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            terms = stage.loss(batch)
        assert all(term.dtype == torch.float32 for term in terms.values())
        found = gradients(sum(terms.values()), student)
        assert all(g is None or g.isfinite().all() for g in found.values())
