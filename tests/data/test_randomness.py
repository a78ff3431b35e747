"""Random numbers that follow from a count."""

import math

import pytest
import torch

from refilled.data.randomness import counted


def split_mix(start: int, count: int) -> list[int]:
    """The published algorithm, in whole numbers without limits."""
    found = []
    for number in range(start + 1, start + count + 1):
        bits = number * 0x9E3779B97F4A7C15 % 2**64
        bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        bits = (bits ^ bits >> 27) * 0x94D049BB133111EB % 2**64
        found.append((bits ^ bits >> 31) >> 1)
    return found


@pytest.mark.parametrize("start", [0, 1, 12345, 2**31, 2**62 - 1])
def test_equals_reference(start):
    found = counted(torch.tensor(start), (3, 40))
    assert found.dtype == torch.int64
    assert found.flatten().tolist() == split_mix(start, 120)


def test_the_published_first_numbers():
    """SplitMix64 that starts from 0: 0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, …; ours are half of them."""
    assert counted(torch.tensor(0), (2,)).tolist() == [0xE220A8397B1DCDAF // 2, 0x6E789E6AA1B965F4 // 2]


def test_who_counts_on_draws_on():
    start = torch.tensor(77)
    both = counted(start, (2, 5))
    assert torch.equal(counted(start + 5, (5,)), both[1])
    assert len(set(both.flatten().tolist())) == 10


@pytest.mark.parametrize("limit", [2, 7, 100, 49_500])
def test_every_number_below_a_limit_equally_often(limit):
    draws = 2_000_000
    counts = torch.bincount(counted(torch.tensor(5), (draws,)) % limit, minlength=limit).double()
    expected = draws / limit
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert abs(statistic - (limit - 1)) < 5 * math.sqrt(2 * (limit - 1))


def test_neighbours_have_nothing_in_common():
    numbers = counted(torch.tensor(9), (200_001,)).double() / 2**63
    assert abs(float(torch.corrcoef(torch.stack([numbers[:-1], numbers[1:]]))[0, 1])) < 0.01
    bits = counted(torch.tensor(9), (20_000,))
    for place in range(63):
        assert abs(float(((bits >> place) & 1).double().mean()) - 0.5) < 0.02
