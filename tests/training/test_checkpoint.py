import json

import pytest
import torch
from tiny import cross_entropy, same_weights, tiny_batches, tiny_network

from refilled.errors import UserError
from refilled.training import PlainStep, Position, TrainSettings, training
from refilled.training.checkpoint import Checkpoint, is_checkpoint_of, save_checkpoint


@pytest.fixture
def saved(tmp_path):
    """A network and its step after a few updates, and the checkpoint of them."""
    network = tiny_network()
    step = PlainStep(cross_entropy(network), 0.9, 5e-4)
    for batch in tiny_batches().epoch(0):
        step(batch, 0.1)
    path = tmp_path / "checkpoint" / "last.safetensors"
    save_checkpoint(path, network, step.optimizer, Position(1, 4, 2.5), "the plan")
    return network, step, path


def test_weights_momenta_and_position_come_back_and_training_goes_on_the_same(saved):
    network, step, path = saved
    other = tiny_network(seed=5)
    other_step = PlainStep(cross_entropy(other), 0.9, 5e-4)
    checkpoint = Checkpoint(path, "the plan")
    checkpoint.restore_student(other)
    checkpoint.restore_optimizer(other_step.optimizer)
    assert checkpoint.position == Position(1, 4, 2.5)
    for batch in tiny_batches().epoch(1):
        step(batch, 0.05)
        other_step(batch, 0.05)
    assert same_weights(network, other)


def test_without_the_momenta_it_would_not_be_the_same(saved):
    network, step, path = saved
    other = tiny_network(seed=5)
    other_step = PlainStep(cross_entropy(other), 0.9, 5e-4)
    Checkpoint(path, "the plan").restore_student(other)
    batch = next(tiny_batches().epoch(1))
    step(batch, 0.05)
    other_step(batch, 0.05)
    assert not same_weights(network, other)


def test_a_damaged_checkpoint_is_named(saved):
    _, _, path = saved
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"last\.safetensors is damaged.*delete it"):
        Checkpoint(path, "the plan")


def test_a_checkpoint_of_another_run_is_refused(saved):
    _, _, path = saved
    with pytest.raises(UserError, match="other settings"):
        Checkpoint(path, "another plan")


def test_what_a_plan_does_not_say_and_what_it_says_is_none_are_the_same(saved):
    """A setting that is younger than the checkpoint, and none, is no other setting."""
    network, step, path = saved
    old = {"settings": {"data": {"shots": 5}, "none": None}, "student": "wrn-10-1"}
    young = {"student": "wrn-10-1", "settings": {"data": {"shots": 5, "test_fraction": None}}}
    for written, asked in ((old, young), (young, old)):
        save_checkpoint(path, network, step.optimizer, Position(), json.dumps(written))
        Checkpoint(path, json.dumps(asked))
        assert is_checkpoint_of(path, json.dumps(asked))
        for other in ({"shots": 6}, {"shots": 5, "test_fraction": 0.3}, {}):
            changed = json.dumps(asked | {"settings": {"data": other}})
            assert not is_checkpoint_of(path, changed)
            with pytest.raises(UserError, match="other settings"):
                Checkpoint(path, changed)


def test_a_checkpoint_of_another_architecture_is_refused(saved):
    _, _, path = saved
    with pytest.raises(UserError, match="another architecture"):
        Checkpoint(path, "the plan").restore_student(tiny_network(spec="wrn-10-2"))


def test_a_failed_write_leaves_the_old_checkpoint(saved, monkeypatch):
    network, step, path = saved
    before = path.read_bytes()

    def broken(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr("refilled.models.weights.save_file", broken)
    with pytest.raises(OSError, match="disk full"):
        save_checkpoint(path, network, step.optimizer, Position(9, 9), "the plan")
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_other_people_may_read_it(saved):
    _, _, path = saved
    plain = path.parent / "plain"
    plain.write_text("x")
    assert path.stat().st_mode == plain.stat().st_mode


def test_tied_weights_can_be_saved(tmp_path):
    layer = torch.nn.Linear(3, 3)
    pair = torch.nn.ModuleList([layer, layer])
    optimizer = torch.optim.SGD(pair.parameters(), lr=0.1)
    save_checkpoint(tmp_path / "c.safetensors", pair, optimizer, Position(), "")
    Checkpoint(tmp_path / "c.safetensors", "").restore_student(pair)


def test_momenta_come_back_in_the_layout_of_their_parameters(tmp_path):
    """A fused update goes through parameter and momentum side by side, in the order of memory."""

    def made():
        network = tiny_network().to(memory_format=torch.channels_last)
        return network, PlainStep(cross_entropy(network), 0.9, 5e-4)

    batches = list(tiny_batches().epoch(0))
    network, step = made()
    step(batches[0], 0.1)
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, network, step.optimizer, Position(0, 1), "plan")
    again, resumed = made()
    checkpoint = Checkpoint(path, "plan")
    checkpoint.restore_student(again)
    checkpoint.restore_optimizer(resumed.optimizer)
    for parameter, state in resumed.optimizer.state.items():
        assert state["momentum_buffer"].stride() == parameter.stride()
    step(batches[1], 0.1)
    resumed(batches[1], 0.1)
    assert same_weights(network, again)


def test_seconds_go_on_from_the_checkpoint(tmp_path):
    """24 images in batches of 8, a second for each step: three before it was stopped in the second epoch."""
    now = 0.0

    def steps(resume):
        network = tiny_network()
        settings = TrainSettings(epochs=2, batch_size=8, checkpoint_seconds=0.0)
        stages = [cross_entropy(network, 2)]
        return training(
            stages, network, tiny_batches(), settings, folder=tmp_path, resume=resume, clock=lambda: now
        )

    def run_on(job, most):
        nonlocal now
        for _ in range(most):
            next(job)
            now += 1.0

    began = steps(resume=False)
    run_on(began, 4)
    began.close()
    now = 100.0
    resumed = steps(resume=True)
    run_on(resumed, 3)
    with pytest.raises(StopIteration) as end:
        next(resumed)
    assert end.value.value == pytest.approx(6.0)
