"""Methods by name: each judges the same tasks, none changes a network."""

import copy

import pytest
import torch

from refilled.data import ImageSet, TensorPixels
from refilled.errors import UserError
from refilled.fewshot import (
    METHODS,
    Episodes,
    OnEmbeddings,
    World,
    embed_pool,
    load_pool,
    make_method,
    nearest_class_mean,
    run_tasks,
    settings_of,
)

from .world import make_pool, small_network

_STEPS = {"steps": 2, "per_class": 2}
_EPISODES = {"episodes": 2, "queries": 3}
SHORT = {
    "fine-tune": _STEPS, "student": _STEPS, "refilled": _STEPS, "refilled-scratch": _STEPS,
    "protonet": _EPISODES, "feat": _EPISODES, "maml": {"iterations": 2, "queries": 3},
    "neg-cosine": {"epochs": 1, "batch_size": 28},
}  # fmt: skip


def make_world(**options):
    network = small_network()
    settings = {
        "pool": make_pool(),
        "network": network,
        "teacher": small_network("convnet-1", seed=2),
        "seen": make_pool(seed=5),
        "view_count": 2,
    }
    return World(**(settings | options))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_an_accuracy(name):
    world = make_world()
    episodes = Episodes(world.pool.labels, 2, ways=3, queries=4)
    before = [copy.deepcopy(network.state_dict()) for network in (world.network, world.teacher)]
    short = SHORT.get(name, {})
    found = run_tasks(make_method(name, world, episodes, **short), episodes, 3, at_once=2)
    again = run_tasks(make_method(name, make_world(), episodes, **short), episodes, 3, at_once=3)
    assert found == again, "the same world and tasks, the same accuracy"
    assert 0 <= found.mean <= 1
    assert len(found.per_task) == 3
    for network, state in zip((world.network, world.teacher), before):
        assert all(torch.equal(state[key], value) for key, value in network.state_dict().items())


def test_an_unknown_name_is_refused():
    world = make_world()
    with pytest.raises(UserError, match="did you mean 'protonet'"):
        make_method("protonets", world, Episodes(world.pool.labels, 1, ways=3, queries=2))


def test_settings_are_those_that_do_something():
    assert settings_of("lr").penalty == 10
    assert settings_of("svm", penalty=3.0).penalty == 3
    assert settings_of("refilled", steps=7, strength=1.0).steps == 7
    with pytest.raises(UserError, match="unknown setting of few-shot method 1nn 'penalty'"):
        settings_of("1nn", penalty=3.0)
    with pytest.raises(UserError, match="unknown setting of few-shot method fine-tune 'strength'"):
        settings_of("fine-tune", strength=3.0)
    with pytest.raises(UserError, match="'shots'"):  # those are the tasks' own
        settings_of("protonet", shots=3)
    with pytest.raises(UserError, match="steps must be at least 1"):
        settings_of("refilled", steps=0)
    for name in ("maml", "protonet", "feat", "neg-cosine"):
        assert settings_of(name).precision == "auto"
        with pytest.raises(UserError, match="unknown value of precision 'half'"):
            settings_of(name, precision="half")
    with pytest.raises(UserError, match="steps of two stages must be at least 2, not 1"):
        settings_of("refilled", steps=1, embedding_share=0.5)
    assert settings_of("refilled", steps=1).statistics == settings_of("fine-tune").statistics == "known"
    assert settings_of("refilled-scratch").head == settings_of("student").head == "fresh"


def test_a_network_for_any_shots_is_trained_once():
    told = []
    world = make_world(progress=lambda done, total: told.append(done))
    for shots in (1, 2):
        episodes = Episodes(world.pool.labels, shots, ways=3, queries=4)
        make_method("neg-cosine", world, episodes, epochs=1, task_steps=shots)
    assert told == [1]
    make_method("neg-cosine", world, episodes, epochs=2)
    assert told == [1, 1, 2]


@pytest.mark.parametrize("name", ["simpleshot", "maml", "protonet", "neg-cosine", "feat"])
def test_seen_images_are_asked_for(name):
    world = make_world(seen=None)
    with pytest.raises(UserError, match=f"{name} needs images of the seen classes"):
        make_method(name, world, Episodes(world.pool.labels, 1, ways=3, queries=2))


def test_where_memory_does_not_suffice_fewer_are_learnt_together():
    world = make_world()
    episodes = Episodes(world.pool.labels, 2, ways=3, queries=4)
    plain, given = make_method("ncm", world, episodes), []

    def greedy(tasks):
        given.append(len(tasks))
        if len(tasks) > 2:
            raise torch.OutOfMemoryError("out of memory")
        return plain(tasks)

    assert run_tasks(greedy, episodes, 7, at_once=6) == run_tasks(plain, episodes, 7)
    assert given == [6, 3, 1, 1, 1, 1, 1, 1, 1]


def test_embeddings_are_those_of_the_network():
    world = make_world()
    episodes = Episodes(world.pool.labels, 2, ways=3, queries=4)
    plain = OnEmbeddings(embed_pool(world.network, world.pool), nearest_class_mean)
    assert run_tasks(make_method("ncm", world, episodes), episodes, 5) == run_tasks(plain, episodes, 5)


def test_a_pool_of_a_set():
    made = make_pool()
    pool = load_pool(ImageSet(TensorPixels(made.images), made.labels, made.classes), 16, "cpu")
    assert torch.equal(pool.images, made.images)
    assert torch.equal(pool.labels, made.labels)
    assert len(pool) == len(made)
