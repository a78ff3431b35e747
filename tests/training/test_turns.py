"""Trainings that take turns, and whose the time was."""

from types import SimpleNamespace

import pytest

from refilled.training import Shares, take_turns, turns
from refilled.training.turns import WAITING


@pytest.fixture
def clock(monkeypatch):
    """Time goes on by hand."""
    now = {"s": 0.0}
    monkeypatch.setattr(turns, "time", SimpleNamespace(monotonic=lambda: now["s"]))
    return now


def training(clock, steps, each=1.0, before=0.0):
    """Started with a clock of its own, by which it says how long it took from its first step to its last."""

    def start(own):
        began = own() - before
        for _ in range(steps):
            clock["s"] += each
            yield
        return own() - began

    return start


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


def test_seconds_before_an_interruption_stay_what_they_were(clock):
    """Eight of its own before, then four steps beside another training, whatever shared the time before."""
    shares = Shares()
    jobs = [shares.own_part(training(clock, 4, before=8.0)), shares.own_part(training(clock, 4))]
    resumed, _ = take_turns(jobs, 2)
    assert resumed == pytest.approx(12.0, abs=0.6)


def test_the_clock_can_be_read_at_any_time(clock):
    """As for a checkpoint: in the middle of a step that has taken half of it so far."""
    read = []

    def start(own):
        clock["s"] += 2.0
        read.append(own())
        yield

    take_turns([Shares().own_part(start)], 1)
    assert read == [pytest.approx(2.0)]


def test_who_only_waits_has_no_part_of_the_time(clock):
    """Three wait for five seconds of the first, and then work for two beside each other."""

    def waiting(own):
        began = own()
        while clock["s"] < 5.0:
            yield WAITING
        yield
        for _ in range(2):
            clock["s"] += 1.0
            yield
        return own() - began

    shares = Shares()
    jobs = [shares.own_part(training(clock, 5)), *(shares.own_part(waiting) for _ in range(3))]
    first, *others = take_turns(jobs, 4)
    assert first == pytest.approx(5.0, abs=1.0)  # and not a quarter of it
    assert sum(others) == pytest.approx(6.0, abs=1.0)
    assert shares.active == 0


@pytest.mark.parametrize("at_once", [1, 2])
def test_who_only_waits_takes_nobodys_place(at_once):
    """Others have it, as many as ever; who has waited long enough goes on beside them."""
    there, busy, most = [], [0], []

    def waits():
        for _ in range(100):
            if there:
                yield
                return "waited"
            yield WAITING
        raise AssertionError("nobody else has had a turn")

    def works(number):
        busy[0] += 1
        for _ in range(3):
            most.append(busy[0])
            yield
        busy[0] -= 1
        if number == 4:
            there.append(number)
        return number

    jobs = [waits(), *map(works, range(6)), waits()]
    assert take_turns(jobs, at_once) == ["waited", *range(6), "waited"]
    assert max(most) == at_once


def test_who_is_stopped_while_it_waits_is_not_counted(clock):
    def waiting(own):
        while True:
            yield WAITING

    shares = Shares()
    stopped = shares.own_part(waiting)
    next(stopped)
    assert shares.active == 0
    stopped.close()
    assert shares.active == 0


def test_one_that_breaks_down_leaves_the_time_to_the_others(clock):
    def broken(own):
        yield
        raise ValueError("no")

    shares = Shares()
    with pytest.raises(ValueError, match="no"):
        take_turns([shares.own_part(broken)], 1)
    assert shares.active == 0
    stopped = shares.own_part(training(clock, 5))
    next(stopped)
    stopped.close()
    assert shares.active == 0
