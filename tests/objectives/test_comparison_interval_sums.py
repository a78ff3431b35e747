"""Sums over windows of sorted negatives, exact relative to their own size."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from refilled.objectives import comparison

from . import reference


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.integers(1, 4), st.integers(1, 20), st.randoms(use_true_random=False), st.integers(0, 300))
def test_interval_sums_equal_a_loop(rows, n, random, decades):
    """Values from 1 down to 10^-decades: every window is exact relative to its own size."""
    values = torch.tensor(
        [[10.0 ** -random.uniform(0, decades) for _ in range(n)] for _ in range(rows)], dtype=torch.float64
    )
    first = torch.tensor([[random.randint(0, n) for _ in range(n)] for _ in range(rows)])
    signed = values * torch.tensor([random.choice((-1.0, 0.0, 1.0)) for _ in range(n)], dtype=torch.float64)
    sums, signed_sums = comparison.interval_sums((values, signed), first)
    torch.testing.assert_close(sums, reference.interval_sums(values, first), rtol=1e-13, atol=0)
    bound = 1e-13 * reference.interval_sums(signed.abs(), first)
    assert ((signed_sums - reference.interval_sums(signed, first)).abs() <= bound).all()


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 9, 16, 17])
def test_interval_sums_for_every_interval(n):
    """All (first, last) of a row at once, one row for each first; integers, so sums are exact."""
    values = torch.arange(1.0, n + 1, dtype=torch.float64).pow(3).expand(n + 1, n)
    first = torch.arange(n + 1)[:, None].expand(n + 1, n)
    (sums,) = comparison.interval_sums((values,), first)
    assert torch.equal(sums, reference.interval_sums(values, first))


def test_interval_sums_gradient():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(2, 7, generator=generator, dtype=torch.float64, requires_grad=True)
    first = torch.randint(0, 8, (2, 7), generator=generator)
    assert torch.autograd.gradcheck(lambda x: comparison.interval_sums((x, x * x), first), (values,))
