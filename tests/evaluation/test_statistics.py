"""Statistics over seeds against numpy and scipy."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refilled.evaluation import counting_error, half_interval, paired_error, spread

scipy_stats = pytest.importorskip("scipy.stats")
numbers = st.floats(-100, 100)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.lists(numbers, min_size=2, max_size=40))
def test_spread_equals_numpy(values):
    found = spread(values)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-9)
    assert found.std == pytest.approx(np.std(values, ddof=1), abs=1e-9)
    assert found.runs == len(values)


def test_spread_of_one_run():
    found = spread([0.75])
    assert (found.mean, found.runs) == (0.75, 1)
    assert math.isnan(found.std)


def test_spread_of_equal_runs():
    assert spread([0.5, 0.5, 0.5]).std == 0


@pytest.mark.parametrize("runs", [*range(2, 33), 60, 1000])
def test_half_interval_is_that_of_students_t(runs):
    differences = np.random.default_rng(runs).normal(0.3, 1.0, runs)
    low, high = scipy_stats.t.interval(
        0.95, runs - 1, loc=differences.mean(), scale=scipy_stats.sem(differences)
    )
    assert half_interval(differences.tolist()) == pytest.approx((high - low) / 2, rel=2e-3)


def test_half_interval_says_whether_a_paired_t_test_does():
    """The interval leaves out 0 exactly where the test says p < 0.05."""
    generator = np.random.default_rng(0)
    verdicts = []
    for _ in range(300):
        differences = generator.normal(0.8, 1.0, 5)
        p = scipy_stats.ttest_1samp(differences, 0).pvalue
        if abs(p - 0.05) > 1e-4:
            verdicts.append(p < 0.05)
            assert (abs(differences.mean()) > half_interval(differences.tolist())) == (p < 0.05)
    assert 0 < sum(verdicts) < len(verdicts)


def test_half_interval_of_one_difference_is_unknown():
    assert math.isnan(half_interval([0.1]))


def test_half_interval_of_equal_differences_is_zero():
    assert half_interval([0.25, 0.25, 0.25]) == 0


@pytest.mark.parametrize("accuracies", [(0.7, 0.7), (0.9, 0.6), (0.5, 0.99)])
@pytest.mark.parametrize("images", [50, 1000])
def test_counting_error_is_that_of_two_proportions(accuracies, images):
    deviation = math.sqrt(sum(scipy_stats.bernoulli.var(a) / images for a in accuracies))
    expected = scipy_stats.norm.ppf(0.975) * deviation
    assert counting_error(accuracies, images) == pytest.approx(expected, rel=1e-4)


def test_counting_error_covers_what_it_promises():
    """Of two models that are equally good, 95 % of the measured differences lie within it."""
    drawn = np.random.default_rng(1).binomial(400, 0.8, size=(20_000, 2)) / 400
    within = np.abs(drawn[:, 0] - drawn[:, 1]) <= counting_error((0.8, 0.8), 400)
    assert within.mean() == pytest.approx(0.95, abs=0.01)


def test_counting_error_at_the_ends():
    assert counting_error((1.0, 0.0), 100) == 0
    assert counting_error((0.5, 0.5), 400) == pytest.approx(counting_error((0.5, 0.5), 100) / 2)
    assert math.isfinite(counting_error((0.5, 0.5), 0))


@pytest.mark.parametrize("difference", [0.0, 0.01, -0.01, 0.2, 1.0, -1.0])
@pytest.mark.parametrize("images", [1, 6, 400, 10_000])
def test_paired_error_is_half_of_agresti_and_coulls_interval(difference, images):
    """Of a share of images that one model has right and the other wrong; the sign does not matter."""
    share = (abs(difference) * images + 2) / (images + 4)
    expected = scipy_stats.norm.ppf(0.975) * scipy_stats.bernoulli.std(share) / math.sqrt(images + 4)
    assert paired_error(difference, images) == pytest.approx(expected, rel=1e-4)


def test_paired_error_shrinks_with_images_and_never_vanishes():
    errors = [paired_error(0.0, images) for images in (0, 4, 100, 10_000)]
    assert errors == sorted(errors, reverse=True)
    assert all(0 < error < 1 for error in errors)
