"""Losses of unusual batches and in less than full precision."""

import pytest
import torch
from torch.nn import functional as F

from refilled.methods.refilled_settings import TwoStageSettings
from refilled.methods.refilled_terms import ClassifierTerm

from .world import first_batch, gradients, make_batches, make_stages, values


def unusual(kind):
    batches = make_batches(size=16)
    batch = first_batch(batches)
    if kind == "every class once":
        rows = torch.stack([(batches.labels == c).nonzero()[0, 0] for c in range(4)])
    elif kind == "one class":
        rows = (batches.labels == 1).nonzero()[:, 0]
    else:
        rows = torch.tensor([0, 1, 0, 1, 0])
    batch.images, batch.labels = batches.source.images[rows].float() / 255, batches.labels[rows]
    batch.rows = rows
    return batches, batch


@pytest.mark.parametrize("kind", ["every class once", "one class", "duplicates"])
@pytest.mark.parametrize(
    "name", ["refilled", "refilled-two-stages", "refilled-gamma", "refilled-paper", "refilled-authors"]
)
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
        if list(terms) == ["comparison"] and kind != "duplicates":
            assert all(g is None or not g.any() for g in found.values())


@pytest.mark.parametrize(
    "name",
    ["student", "refilled", "refilled-two-stages", "refilled-gamma", "refilled-paper", "refilled-authors"],
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
    plain = ClassifierTerm(teacher, batches, 4, TwoStageSettings())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        term = ClassifierTerm(teacher, batches, 4, TwoStageSettings())
    assert term.centres.dtype == torch.float32
    assert F.cosine_similarity(term.centres, plain.centres).min() > 0.99
