"""Who waits for a GPU does not hold up who takes turns with it."""

from types import SimpleNamespace

import pytest
import torch
from tiny import cross_entropy, same_weights, tiny_batches, tiny_network

from refilled.training import TrainSettings, loop, take_turns, train
from refilled.training.waiting import StepsAhead, brought

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Slow:
    """A device that does one step for every so many looks at it."""

    def __init__(self, looks_per_step):
        self.looks_per_step, self.looks, self.given = looks_per_step, 0, 0

    def mark(self):
        self.given += 1
        place = self.given
        return SimpleNamespace(query=lambda: self._done() >= place)

    def _done(self):
        self.looks += 1
        return self.looks // self.looks_per_step


def training(ahead, steps, each=lambda: None):
    for _ in range(steps):
        each()
        ahead.given()
        yield
        yield from ahead.room()


def test_a_device_has_two_steps_at_most():
    device, most = Slow(5), []
    ahead = StepsAhead(device.mark)
    take_turns([training(ahead, 8, lambda: most.append(len(ahead._marks)))], 1)
    assert most == [0] + [1] * 7  # before each is given: nothing, later the one that runs


def test_each_training_goes_at_its_own_pace():
    """The slow one does not hold up the other: that is done after as many turns as it has steps."""
    order, slow = [], Slow(50)
    jobs = [
        training(StepsAhead(slow.mark), 4, lambda: order.append("slow")),
        training(StepsAhead(None), 20, lambda: order.append("quick")),
    ]
    take_turns(jobs, 2)
    assert (order.count("slow"), order.count("quick")) == (4, 20)
    assert order[:3] == ["slow", "quick", "slow"]
    assert order[3:22] == ["quick"] * 19


def test_on_a_cpu_there_is_nothing_to_wait_for():
    look = brought(torch.arange(3))
    with pytest.raises(StopIteration) as end:
        next(look)
    assert end.value.value.tolist() == [0, 1, 2]
    ahead = StepsAhead.on(torch.device("cpu"))
    for _ in range(5):
        ahead.given()
    assert list(ahead.room()) == []


@on_gpu
def test_who_waits_for_values_lets_others_go_on():
    order = []
    list(brought(torch.arange(3, device="cuda")))  # the first memory of this kind waits for the GPU itself

    def waiting():
        torch.cuda._sleep(10**8)  # clock cycles: tens of milliseconds
        values = yield from brought(torch.arange(3, device="cuda"))
        order.append("arrived")
        return values.tolist()

    def other():
        for _ in range(10):
            order.append("step")
            yield

    assert take_turns([waiting(), other()], at_once=2)[0] == [0, 1, 2]
    assert order == ["step"] * 10 + ["arrived"]


@on_gpu
def test_long_steps_do_not_hold_up_short_ones():
    order, device = [], torch.device("cuda")

    def steps(name, number, cycles):
        def one():
            order.append(name)
            torch.cuda._sleep(cycles)

        return training(StepsAhead.on(device), number, one)

    take_turns([steps("long", 3, 10**8), steps("short", 30, 10**3)], at_once=2)
    assert order[-1] == "long"  # the third waits for the first, the short ones do not


def test_a_training_waits_for_its_device_and_is_the_same(monkeypatch):
    """24 images in batches of 8: three steps in each of two epochs, of which the device has two at most."""
    slow = Slow(5)

    def trained():
        network = tiny_network()
        settings = TrainSettings(epochs=2, batch_size=8)
        train([cross_entropy(network, 2)], network, tiny_batches(), settings)
        return network

    expected = trained()
    monkeypatch.setattr(loop, "StepsAhead", SimpleNamespace(on=lambda device: StepsAhead(slow.mark)))
    found = trained()
    assert slow.given == 6
    assert slow.looks >= 5 * 4  # for all but the last of each epoch
    assert same_weights(found, expected)
