"""Every option of a method changes the loss terms it is for."""

import itertools

import pytest

from .world import POSTERIORS, WEIGHTS, first_batch, make_stages, values


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
