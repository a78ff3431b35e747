"""Many trainings at once are as many trainings one by one."""

import pytest
import torch
from torch.func import functional_call

from refilled.errors import UserError
from refilled.fewshot import (
    Episodes,
    RefilledTasks,
    TaskTraining,
    Views,
    ask_teacher,
    run_tasks,
    start_students,
)
from refilled.fewshot.batched import one_student
from refilled.fewshot.training import draw_steps, start_tasks
from refilled.methods.refilled_settings import TwoStageSettings

from .world import small_network

WAYS = ("loop", "grouped", "matrices", "vmap")


def make_tasks(pool, count=3, shots=3, queries=4):
    return Episodes(pool.labels, shots, ways=4, queries=queries, seed=1).draw(0, count)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scratch", [False, True])
def test_forward_and_gradient(pool, way, scratch):
    tasks, network = make_tasks(pool), small_network().double()
    students = start_students(network, tasks, scratch=scratch, way=way)
    images = Views(pool).plain(tasks.support).double()
    for training in (True, True, False):
        z, logits = students(images, training=training)
        if training:
            (z.square().sum() + logits.square().sum()).backward()
    for place, number in enumerate(tasks.numbers):
        alone = one_student(network, tasks.ways, tasks.seed, number, scratch=scratch).train()
        for _ in range(2):
            alone_z, alone_logits = alone(images[place])
            (alone_z.square().sum() + alone_logits.square().sum()).backward()
        for name, parameter in alone.named_parameters():
            torch.testing.assert_close(students.weights[name].grad[place], parameter.grad)
        for name, value in alone.named_buffers():
            if name in students.statistics:
                torch.testing.assert_close(students.statistics[name][place], value)
        assert len(students.statistics) == 4
        alone_z, alone_logits = alone.eval()(images[place])
        torch.testing.assert_close(z[place], alone_z)
        torch.testing.assert_close(logits[place], alone_logits)


@pytest.mark.parametrize("way", ["loop", "vmap"])
def test_a_network_that_is_no_convnet(pool, way):
    tasks, network = make_tasks(pool, 2), small_network("resnet-8")
    students = start_students(network, tasks, way=way)
    images = Views(pool).plain(tasks.support)
    _, logits = students(images, training=True)
    alone = one_student(network, tasks.ways, tasks.seed, 1).train()
    torch.testing.assert_close(logits[1], alone(images[1])[1], atol=1e-5, rtol=1e-4)


def test_only_convnets_have_groups(pool):
    tasks = make_tasks(pool, 2)
    students = start_students(small_network("resnet-8"), tasks, way="grouped")
    with pytest.raises(UserError, match="grouped is for ConvNets"):
        students(Views(pool).plain(tasks.support), training=True)


def test_fresh_weights_depend_on_the_task_alone(pool):
    tasks, network = make_tasks(pool), small_network()
    for scratch in (False, True):
        torch.manual_seed(5)
        some = start_students(network, tasks, scratch=scratch)
        state = torch.get_rng_state()
        torch.manual_seed(6)
        alone = one_student(network, tasks.ways, tasks.seed, 2, scratch=scratch)
        for name, parameter in alone.named_parameters():
            assert torch.equal(some.weights[name][2], parameter)
        heads = some.weights["head.weight"]
        assert not torch.equal(heads[0], heads[1])
        first = some.weights["blocks.0.0.weight"]
        assert torch.equal(first[0], first[1]) != scratch
        torch.manual_seed(5)
        assert torch.equal(torch.get_rng_state(), state)


def test_the_network_itself_is_not_changed(pool):
    tasks, network = make_tasks(pool), small_network().eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    students = start_students(network, tasks, way="loop")
    students(Views(pool).plain(tasks.support), training=True)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert not network.training
    assert network.head.out_features == 9


def test_steps_see_the_support_equally_often(pool):
    tasks = make_tasks(pool)
    steps = draw_steps(tasks, 6, 2, views=3)  # 12 places of each class for 3 shots
    assert steps[0].rows.shape == (3, 8)
    assert steps[0].labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    rows = torch.stack([step.rows for step in steps])
    for task in range(3):
        seen, counts = rows[:, task].unique(return_counts=True)
        assert torch.equal(seen, tasks.support[task].sort().values)
        assert (counts == 4).all()
        assert torch.equal(pool.labels[rows[0, task]], pool.labels[tasks.rows[task, steps[0].labels, 0]])
    assert torch.stack([step.views for step in steps]).unique().tolist() == [0, 1, 2]
    alone = draw_steps(Episodes(pool.labels, 3, ways=4, queries=4, seed=1).draw(2, 1), 6, 2, views=3)
    assert all(torch.equal(a.rows[0], b.rows[2]) for a, b in zip(alone, steps))
    assert all(torch.equal(a.views[0], b.views[2]) for a, b in zip(alone, steps))


def make_method(pool, dtype, way, scratch=False, steps=8, how=None, **settings):
    views = Views(pool, count=2)
    teacher = small_network("convnet-1", seed=3).to(dtype)
    student = small_network(seed=4).to(dtype)
    training = TaskTraining(steps=steps, per_class=4, lr=0.02, **(how or {}))
    own = TwoStageSettings(**settings)
    return RefilledTasks(ask_teacher(teacher, views), student, views, training, own, scratch=scratch, way=way)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scratch", [False, True])
@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-9), (torch.float32, 2e-3)])
def test_training_at_once_is_training_one_by_one(pool, task_loop, way, scratch, dtype, near):
    assert_one_by_one(make_method(pool, dtype, way, scratch), make_tasks(pool), task_loop, near)


@pytest.mark.parametrize(
    "settings",
    [{"imitation": 2.0}, {"imitation": 2.0, "imitation_new": 0.7},
     {"imitation": 2.0, "fade": 1.0, "embedding_share": 0.0},
     {"fade": 0.5, "posterior": "scaled", "weight": "none"}],
    ids=str,
)  # fmt: skip
def test_beyond_the_paper_too(pool, task_loop, settings):
    method = make_method(pool, torch.float64, "matrices", **settings)
    assert_one_by_one(method, make_tasks(pool), task_loop, 1e-9)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "how", [{"statistics": "known"}, {"statistics": "known", "head": "centres"}], ids=str
)
def test_known_statistics_and_heads_from_centres(pool, task_loop, way, how):
    method = make_method(pool, torch.float64, way, how=how | {"statistics": "known", "head_lr": 0.01})
    assert_one_by_one(method, make_tasks(pool), task_loop, 1e-9)


@pytest.mark.parametrize("scratch", [False, True])
def test_a_head_from_centres_is_the_nearest_class_mean(pool, scratch):
    tasks, views, network = make_tasks(pool), Views(pool), small_network().double()
    how = TaskTraining(head="centres")
    students = start_tasks(network, tasks, views, how, scratch=scratch, way="loop")
    predicted = students.predict(views.plain(tasks.queries).double())
    for place, number in enumerate(tasks.numbers):
        alone = one_student(network, tasks.ways, tasks.seed, number, scratch=scratch).eval()
        with torch.no_grad():
            support = alone.embed(views.plain(tasks.support[place]).double())
            queries = alone.embed(views.plain(tasks.queries[place]).double())
        means = torch.stack([support[tasks.support_labels == label].mean(dim=0) for label in range(4)])
        cosines = torch.nn.functional.cosine_similarity(queries[:, None], means[None], dim=2)
        assert torch.equal(predicted[place], cosines.argmax(dim=1))


def test_fresh_weights_have_no_known_statistics(pool):
    method = make_method(pool, torch.float32, "loop", scratch=True, how={"statistics": "known"})
    with pytest.raises(UserError, match="use statistics=batch"):
        method.train(make_tasks(pool))


def assert_one_by_one(method, tasks, task_loop, near):
    scratch, dtype = method.scratch, method.student._mean.dtype
    students = method.train(tasks)
    queries = method.views.plain(tasks.queries).to(dtype)
    with torch.no_grad():
        _, logits = students(queries, training=False)
    for place in range(len(tasks)):
        alone = task_loop.train_one(method, task_loop.only(tasks, place))
        start = one_student(method.student, tasks.ways, tasks.seed, place, scratch=scratch)
        moved = dict(start.named_parameters())
        for name, parameter in alone.named_parameters():
            torch.testing.assert_close(students.weights[name][place], parameter, atol=near, rtol=near)
            if not name.endswith("0.bias"):  # a bias before a normalisation has no gradient
                assert not torch.equal(moved[name], parameter), f"{name} has not learnt"
        with torch.no_grad():
            torch.testing.assert_close(
                logits[place], alone(queries[place])[1], atol=10 * near, rtol=10 * near
            )


@pytest.mark.parametrize("way", ["loop", "matrices"])
def test_a_task_does_not_know_its_company(pool, way):
    method = make_method(pool, torch.float64, way)
    together = run_tasks(method, Episodes(pool.labels, 3, ways=4, queries=4), 5, at_once=5)
    alone = run_tasks(method, Episodes(pool.labels, 3, ways=4, queries=4), 5, at_once=2)
    assert together == alone


def test_one_shot_learns_from_views(pool):
    method = make_method(pool, torch.float32, "loop", scratch=True, steps=60)
    found = run_tasks(method, Episodes(pool.labels, 1, ways=4, queries=4), 4)
    assert found.shots == 1
    assert 0.5 < found.mean <= 1


def test_states_are_by_name(pool):
    students = start_students(small_network(), make_tasks(pool))
    one = {name: value[0] for name, value in (students.weights | students.statistics).items()}
    z, _ = functional_call(students.network.eval(), one, (torch.rand(2, 3, 16, 16),))
    assert z.shape == (2, 64)
