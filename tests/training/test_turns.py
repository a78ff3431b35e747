"""Trainings that take turns, and whose the time was."""

from types import SimpleNamespace

import pytest

from refilled.training import Shares, take_turns, turns


@pytest.fixture
def clock(monkeypatch):
    """Time goes on by hand."""
    now = {"s": 0.0}
    monkeypatch.setattr(turns, "time", SimpleNamespace(monotonic=lambda: now["s"]))
    return now


def training(clock, steps, each=1.0):
    """Says how long it took from its first step to its last, as real ones do."""
    began = clock["s"]
    for _ in range(steps):
        clock["s"] += each
        yield
    return clock["s"] - began


def test_alone_all_time_is_its_own(clock):
    shares = Shares()
    assert take_turns([shares.own_part(training(clock, 5))], 1) == [pytest.approx(5.0)]
    assert shares.active == 0


def test_together_each_has_its_part(clock):
    shares = Shares()
    found = take_turns([shares.own_part(training(clock, 4)) for _ in range(2)], 2)
    assert found == [pytest.approx(4.0, abs=0.6)] * 2
    assert sum(found) == pytest.approx(8.0, abs=0.6)


def test_who_stays_alone_has_what_is_left(clock):
    """Ten steps beside one training of two: eight of them alone."""
    shares = Shares()
    long, short = take_turns([shares.own_part(training(clock, n)) for n in (10, 2)], 2)
    assert long == pytest.approx(10.0, abs=0.6)
    assert short == pytest.approx(2.0, abs=0.6)


def test_places_that_stay_empty_count_for_nobody(clock):
    shares = Shares()
    assert take_turns([shares.own_part(training(clock, 5))], 4) == [pytest.approx(5.0)]


def test_seconds_before_an_interruption_count_in_the_same_part(clock):
    def resumed():
        yield from training(clock, 4)
        return 12.0  # eight of them before

    shares = Shares()
    assert take_turns([shares.own_part(resumed())], 1) == [pytest.approx(12.0)]


def test_one_that_breaks_down_leaves_the_time_to_the_others(clock):
    def broken():
        yield
        raise ValueError("no")

    shares = Shares()
    with pytest.raises(ValueError, match="no"):
        take_turns([shares.own_part(broken())], 1)
    assert shares.active == 0
    stopped = shares.own_part(training(clock, 5))
    next(stopped)
    stopped.close()
    assert shares.active == 0
