"""Methods by name: each judges the same tasks, none changes a network."""

import copy

import pytest
import torch

from refilled.data import ImageSet, TensorPixels
from refilled.errors import UserError
from refilled.fewshot import (
    METHODS,
    Episodes,
    MamlTraining,
    MetaTraining,
    NegCosineTraining,
    OnEmbeddings,
    TaskTraining,
    World,
    embed_pool,
    load_pool,
    make_method,
    nearest_class_mean,
    run_tasks,
)

from .world import make_pool, small_network


def make_world(**options):
    network = small_network()
    settings = {
        "pool": make_pool(),
        "network": network,
        "teacher": small_network("convnet-1", seed=2),
        "seen": make_pool(seed=5),
        "view_count": 2,
        "training": TaskTraining(steps=2, per_class=2),
        "meta": MetaTraining(episodes=2, queries=3),
        "neg_cosine": NegCosineTraining(epochs=1, batch_size=28),
        "maml": MamlTraining(iterations=2, queries=3),
    }
    return World(**(settings | options))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_an_accuracy(name):
    world = make_world()
    episodes = Episodes(world.pool.labels, 2, ways=3, queries=4)
    before = [copy.deepcopy(network.state_dict()) for network in (world.network, world.teacher)]
    found = run_tasks(make_method(name, world, episodes), episodes, 3, at_once=2)
    again = run_tasks(make_method(name, make_world(), episodes), episodes, 3, at_once=3)
    assert found == again, "the same world and tasks, the same accuracy"
    assert 0 <= found.mean <= 1
    assert len(found.per_task) == 3
    for network, state in zip((world.network, world.teacher), before):
        assert all(torch.equal(state[key], value) for key, value in network.state_dict().items())


def test_an_unknown_name_is_refused():
    world = make_world()
    with pytest.raises(UserError, match="did you mean 'protonet'"):
        make_method("protonets", world, Episodes(world.pool.labels, 1, ways=3, queries=2))


@pytest.mark.parametrize("name", ["simpleshot", "maml", "protonet", "neg-cosine", "feat"])
def test_seen_images_are_asked_for(name):
    world = make_world(seen=None)
    with pytest.raises(UserError, match=f"{name} needs images of the seen classes"):
        make_method(name, world, Episodes(world.pool.labels, 1, ways=3, queries=2))


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
