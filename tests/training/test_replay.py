"""A replayed step does what a called one does; on a CPU it is a call."""

import warnings

import pytest
import torch
from torch import nn

from refilled.training.replay import Replayed, _Before

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def make_world(device: str, optimiser: str = "sgd", dropout: float = 0.0):
    """A small network with statistics of its own, an optimiser fit to be captured, and a step."""
    torch.manual_seed(0)
    layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 2)
    network = nn.Sequential(*layers).to(device)
    on_gpu = device == "cuda"
    fused = True if on_gpu else None
    if optimiser == "sgd":
        chosen = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, nesterov=True, fused=fused)
    else:
        chosen = torch.optim.Adam(network.parameters(), lr=0.01, capturable=on_gpu, fused=fused)

    def step(x, rate):
        if optimiser == "sgd":
            chosen.param_groups[0]["lr"] = rate
        chosen.zero_grad()
        loss = network(x).square().mean()
        loss.backward()
        chosen.step()
        return loss.detach()

    return network, chosen, step


def make_inputs(device: str, count: int = 6):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(10, 6, generator=generator).to(device), torch.tensor(0.1 / (1 + number)).to(device))
        for number in range(count)
    ]


def state(network, optimiser) -> list[torch.Tensor]:
    momenta = [value for each in optimiser.state.values() for value in each.values()]
    return [value.detach().clone() for value in [*network.state_dict().values(), *momenta]]


def test_on_a_cpu_it_is_a_call():
    network, optimiser, step = make_world("cpu")
    other, of_other, plain = make_world("cpu")
    replayed = Replayed(step, [network], optimiser)
    for inputs in make_inputs("cpu"):
        assert torch.equal(replayed(*inputs), plain(*inputs))
    assert not replayed.captured
    pairs = zip(state(network, optimiser), state(other, of_other), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("begun", [False, True])
def test_steps_that_were_only_tried_do_not_count(optimiser, begun):
    network, own, step = make_world("cpu", optimiser)
    other, of_other, plain = make_world("cpu", optimiser)
    first, *inputs = make_inputs("cpu")
    if begun:
        step(*first)
        plain(*first)
    before = _Before([network], own)
    for each in inputs:
        step(*each)
    before.restore()
    assert all(parameter.grad is None for parameter in network.parameters())
    for each in inputs:
        step(*each)
        plain(*each)
    pairs = zip(state(network, own), state(other, of_other), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)


@needs_gpu
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("begun", [False, True])
def test_replays_are_calls(optimiser, begun):
    network, own, step = make_world("cuda", optimiser)
    other, of_other, plain = make_world("cuda", optimiser)
    inputs = make_inputs("cuda")
    if begun:  # the optimiser has a state already, which the steps that are tried must leave
        step(*inputs[0])
        plain(*inputs[0])
    replayed = Replayed(step, [network], own)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        losses = [replayed(*each).clone() for each in inputs]
    assert replayed.captured
    torch.testing.assert_close(torch.stack(losses), torch.stack([plain(*each) for each in inputs]))
    for one, two in zip(state(network, own), state(other, of_other), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


@needs_gpu
def test_a_capture_changes_nothing():
    network, optimiser, step = make_world("cuda", dropout=0.5)
    inputs = make_inputs("cuda")
    step(*inputs[0])
    before, random = state(network, optimiser), torch.cuda.get_rng_state()
    replayed = Replayed(step, [network], optimiser)
    replayed._capture([each.clone() for each in inputs[1]])
    assert replayed.captured
    pairs = zip(before, state(network, optimiser), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)
    assert torch.equal(random, torch.cuda.get_rng_state())
    assert torch.cuda.get_sync_debug_mode() == 0


@needs_gpu
def test_every_replay_draws_anew():
    def losses(seed):
        network, optimiser, step = make_world("cuda", dropout=0.5)
        replayed = Replayed(step, [network], optimiser)
        x, _ = make_inputs("cuda")[0]
        torch.manual_seed(seed)
        # Nothing is learnt at a rate of 0: whatever differs is drawn.
        found = [float(replayed(x, torch.zeros((), device="cuda"))) for _ in range(6)]
        assert replayed.captured
        return found

    first = losses(1)
    assert len(set(first)) == 6
    assert losses(1) == first
    assert losses(2) != first


@needs_gpu
def test_a_step_that_waits_for_the_device_is_called():
    network, optimiser, step = make_world("cuda", dropout=0.5)
    other, _, plain = make_world("cuda", dropout=0.5)

    def waiting(x, rate):
        assert step(x, rate).item() > 0
        return None

    replayed, inputs = Replayed(waiting, [network], optimiser), make_inputs("cuda")
    torch.manual_seed(1)
    with pytest.warns(UserWarning, match="cannot be captured"):
        replayed(*inputs[0])
    for each in inputs[1:]:
        replayed(*each)
    assert not replayed.captured
    torch.manual_seed(1)
    for each in inputs:
        plain(*each)
    for one, two in zip(network.state_dict().values(), other.state_dict().values()):
        torch.testing.assert_close(one, two)
