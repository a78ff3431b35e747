"""Methods that train on the seen classes, or on the support: what they compute, and that they learn."""

import copy

import pytest
import torch
from torch.nn import functional as F

from refilled import fewshot
from refilled.data import Batches
from refilled.data.augment import augment
from refilled.data.randomness import mixed_seed, seeded_generator
from refilled.errors import UserError
from refilled.fewshot import Episodes, FineTuneTasks, OnEmbeddings, TaskTraining, Views, embed_pool, run_tasks
from refilled.fewshot.batched import one_student
from refilled.fewshot.feat import SetToSet, feat_loss
from refilled.fewshot.maml import meta_gradient
from refilled.fewshot.meta import _OF_META_VIEWS
from refilled.fewshot.neg_cosine import margin_loss
from refilled.fewshot.protonet import prototype_loss
from refilled.fewshot.training import draw_steps

from .world import make_pool, small_network

SEEN = make_pool(seed=5)
SHORT = fewshot.MetaTraining(episodes=15, ways=4, shots=2, queries=4, lr=0.02, augment="crop-flip")


def close(one, other, rtol=1e-4, atol=1e-5):
    """Whether two modules have the same weights and statistics, but for rounding."""
    left, right = one.state_dict(), other.state_dict()
    return all(torch.allclose(left[name], right[name], rtol=rtol, atol=atol) for name in left)


def judge(method, pool, shots=3, ways=4, tasks=8):
    return run_tasks(method, Episodes(pool.labels, shots, ways=ways, queries=5, seed=2), tasks)


def test_fine_tuning_is_plain_training(pool):
    views, network = Views(pool, count=2), small_network().double()
    training = TaskTraining(steps=5, per_class=3, lr=0.01)
    tasks = Episodes(pool.labels, 3, ways=4, queries=5).draw(0, 2)
    tuned = FineTuneTasks(network, views, training).train(tasks)
    for place in range(2):
        alone = one_student(network, tasks.ways, tasks.seed, place).train()
        groups = [{"params": alone.backbone_parameters(), "lr": 0.01}]
        groups.append({"params": list(alone.head.parameters()), "lr": 0.1})
        optimiser = torch.optim.SGD(groups, momentum=0.9, weight_decay=5e-4)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 5)
        for step in draw_steps(tasks, 5, 3, 3):
            images = views.show(step.rows[place], step.views[place]).double()
            optimiser.zero_grad()
            F.cross_entropy(alone(images)[1], step.labels).backward()
            optimiser.step()
            falling.step()
        for name, parameter in alone.named_parameters():
            torch.testing.assert_close(tuned.weights[name][place], parameter)


def test_fine_tuning_learns(pool):
    training = TaskTraining(steps=30, per_class=4)
    found = judge(FineTuneTasks(small_network(), Views(pool), training, scratch=True), pool)
    assert found.mean > 0.5


def test_prototype_loss():
    torch.manual_seed(0)
    support, queries = torch.randn(4, 3, 6), torch.randn(4, 5, 6)
    losses = []
    for label in range(4):
        for query in queries[label]:
            logits = torch.stack(
                [-((query - support[other].mean(dim=0)) ** 2).sum() / 2.5 for other in range(4)]
            )
            losses.append(-logits.log_softmax(dim=0)[label])
    torch.testing.assert_close(prototype_loss(2.5)(support, queries), torch.stack(losses).mean())


def test_protonet_learns(pool):
    network = small_network()
    before = judge(fewshot.protonet_tasks(network, pool), pool).mean
    state = copy.deepcopy(network.state_dict())
    fewshot.train_protonet(network, SEEN, SHORT, temperature=4.0)
    assert not network.training
    assert not torch.equal(network.state_dict()["blocks.0.0.weight"], state["blocks.0.0.weight"])
    assert judge(fewshot.protonet_tasks(network, pool), pool).mean >= max(0.5, before - 0.1)


def test_meta_training_depends_on_its_seed_alone():
    networks = [small_network(), small_network()]
    adapted = []
    for number, network in enumerate(networks):
        torch.manual_seed(number)
        adapted.append(fewshot.train_feat(network, SEEN, SHORT))
    for one, other in (networks, adapted):
        assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values()))


@pytest.mark.parametrize("augmentation", ["crop-flip", "resized-crop-flip"])
def test_meta_training_is_plain_training(augmentation):
    settings = fewshot.MetaTraining(
        episodes=5, ways=4, shots=2, queries=4, lr=0.02, fresh_lr=0.05, augment=augmentation, seed=3
    )
    network, alone = small_network(), small_network()
    adapt = fewshot.train_feat(network, SEEN, settings, temperature=8.0)

    with torch.random.fork_rng():
        torch.manual_seed(mixed_seed(settings.seed))
        beside = SetToSet(alone.dim)
    groups = [{"params": alone.train().backbone_parameters(), "lr": 0.02}]
    groups.append({"params": list(beside.parameters()), "lr": 0.05})
    optimiser = torch.optim.SGD(groups, momentum=0.9, weight_decay=5e-4, nesterov=True)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 5)
    episodes = Episodes(SEEN.labels, 2, ways=4, queries=4, seed=3)
    torch.manual_seed(mixed_seed(settings.seed, _OF_META_VIEWS))
    for number in range(5):
        rows = episodes.draw(number, 1).rows[0]
        generator = seeded_generator(settings.seed, _OF_META_VIEWS, number)
        z = alone.embed(augment(SEEN.images[rows.flatten()], augmentation, generator)).view(4, 6, -1)
        optimiser.zero_grad()
        feat_loss(beside, 8.0)(z[:, :2], z[:, 2:]).backward()
        optimiser.step()
        falling.step()
    assert close(network, alone)
    assert close(adapt, beside)


def test_meta_training_without_momentum(pool):
    settings = fewshot.MetaTraining(episodes=2, ways=4, shots=2, queries=4, momentum=0.0)
    network = small_network()
    fewshot.train_protonet(network, SEEN, settings)
    assert not close(network, small_network())


def test_seen_classes_that_are_too_few_are_refused():
    with pytest.raises(UserError, match="7 classes, too few for tasks of 9 ways"):
        fewshot.train_protonet(small_network(), SEEN, fewshot.MetaTraining(ways=9, shots=1, queries=2))


def test_sets_have_no_order():
    torch.manual_seed(0)
    adapt, sets, order = SetToSet(6).eval(), torch.randn(3, 5, 6), torch.randperm(5)
    torch.testing.assert_close(adapt(sets[:, order]), adapt(sets)[:, order])
    one = torch.stack([adapt(each[None])[0] for each in sets])
    torch.testing.assert_close(adapt(sets), one)


def test_set_function_is_attention():
    torch.manual_seed(0)
    adapt, elements = SetToSet(6).eval(), torch.randn(5, 6)
    keys, values = elements @ adapt.key.weight.T, elements @ adapt.value.weight.T
    for place, element in enumerate(elements):
        weights = torch.stack([(adapt.ask.weight @ element) @ key / 6**0.5 for key in keys]).softmax(dim=0)
        found = adapt.out((weights[:, None] * values).sum(dim=0))
        wanted = F.layer_norm(element + found, (6,))
        torch.testing.assert_close(adapt(elements[None])[0, place], wanted)


def test_feat_loss_has_two_terms():
    torch.manual_seed(0)
    adapt, support, queries = SetToSet(6).eval(), torch.randn(4, 3, 6), torch.randn(4, 5, 6)
    means = adapt(support.mean(dim=1)[None])[0]
    plain = F.cross_entropy(
        -(torch.cdist(queries.flatten(0, 1), means) ** 2) / 8, torch.arange(4).repeat_interleave(5)
    )
    torch.testing.assert_close(feat_loss(adapt, 8.0, 0.0)(support, queries), plain)
    images = torch.cat([support, queries], dim=1)
    own = torch.stack([adapt(each[None])[0].mean(dim=0) for each in images])
    contrast = F.cross_entropy(
        -(torch.cdist(images.flatten(0, 1), own) ** 2) / 8, torch.arange(4).repeat_interleave(8)
    )
    torch.testing.assert_close(feat_loss(adapt, 8.0, 0.5)(support, queries), plain + 0.5 * contrast)


def test_feat_learns(pool):
    network = small_network()
    adapt = fewshot.train_feat(network, SEEN, SHORT, temperature=8.0)
    method = OnEmbeddings(embed_pool(network, pool), fewshot.feat(adapt))
    assert judge(method, pool).mean > 0.4
    tasks = Episodes(pool.labels, 3, ways=4, queries=5).draw(0, 1)
    z = embed_pool(network, pool)
    means = adapt(z[tasks.support[0]].view(4, 3, -1).mean(dim=1)[None])[0]
    assert torch.equal(method(tasks)[0], torch.cdist(z[tasks.queries[0]], means).argmin(dim=1))


def test_margin_loss():
    torch.manual_seed(0)
    z, weights, labels = torch.randn(6, 5), torch.randn(3, 5), torch.tensor([0, 1, 2, 2, 1, 0])
    losses = []
    for embedding, label in zip(z, labels):
        logits = 30 * torch.stack([F.cosine_similarity(embedding, weight, dim=0) for weight in weights])
        logits[label] += 30 * 0.02
        losses.append(-logits.log_softmax(dim=0)[label])
    torch.testing.assert_close(margin_loss(z, weights, labels, -0.02, 30.0), torch.stack(losses).mean())


def test_cosine_softmax_is_plain_training():
    torch.manual_seed(0)
    support, queries, labels = (
        torch.randn(3, 8, 6),
        torch.randn(3, 10, 6),
        torch.arange(4).repeat_interleave(2),
    )
    wanted = []
    for images, asked in zip(support, queries):
        unit = F.normalize(images, dim=1)
        weights = F.normalize(torch.stack([unit[labels == label].mean(dim=0) for label in range(4)]), dim=1)
        weights.requires_grad_()
        optimiser = torch.optim.SGD([weights], lr=0.05, momentum=0.9)
        for _ in range(20):
            optimiser.zero_grad()
            F.cross_entropy(10 * unit @ F.normalize(weights, dim=1).T, labels).backward()
            optimiser.step()
        wanted.append((asked @ F.normalize(weights, dim=1).T).argmax(dim=1))
    assert torch.equal(fewshot.cosine_softmax(20, 0.05, 10.0)(support, labels, queries), torch.stack(wanted))


def test_neg_cosine_learns(pool):
    network = small_network(classes=7)
    settings = fewshot.NegCosineTraining(epochs=8, batch_size=28, lr=0.05)
    fewshot.train_neg_cosine(network, SEEN, settings)
    right = (
        F.normalize(embed_pool(network, SEEN), dim=1) @ F.normalize(network.head.weight, dim=1).T
    ).argmax(1)
    assert (right == SEEN.labels).double().mean() > 0.5
    method = OnEmbeddings(embed_pool(network, pool), fewshot.cosine_softmax(steps=20))
    assert judge(method, pool).mean > 0.5


def test_neg_cosine_is_plain_training():
    settings = fewshot.NegCosineTraining(epochs=2, batch_size=28, lr=0.05, seed=3)
    network, alone, told = small_network(classes=7), small_network(classes=7), []
    fewshot.train_neg_cosine(network, SEEN, settings, lambda *state: told.append(state))
    assert told == [(1, 2), (2, 2)]
    assert not network.training
    assert not any(parameter.requires_grad for parameter in network.parameters())

    batches = Batches(SEEN.images, SEEN.labels, 28, "crop-flip", 3)
    optimiser = torch.optim.SGD(
        [*alone.train().backbone_parameters(), alone.head.weight],
        lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True,
    )  # fmt: skip
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 2 * len(batches))
    for batch in [*batches.epoch(0), *batches.epoch(1)]:
        optimiser.zero_grad()
        margin_loss(alone.embed(batch.images), alone.head.weight, batch.labels, -0.02, 30.0).backward()
        optimiser.step()
        falling.step()
    assert close(network, alone)


def test_neg_cosine_leaves_the_random_numbers():
    network, before = small_network(classes=7), torch.get_rng_state()
    fewshot.train_neg_cosine(network, SEEN, fewshot.NegCosineTraining(epochs=1, batch_size=28))
    assert torch.equal(before, torch.get_rng_state())


def first_order(network, tasks, steps, lr):
    """The mean of the queries' gradients at weights adapted to each task, one task after the other."""
    total = {name: 0.0 for name, _ in network.named_parameters()}
    for place in range(len(tasks)):
        alone = copy.deepcopy(network).train()
        optimiser = torch.optim.SGD(alone.parameters(), lr=lr)
        for _ in range(steps):
            optimiser.zero_grad()
            images = SEEN.images[tasks.support[place]].double() / 255
            F.cross_entropy(alone(images)[1], tasks.support_labels).backward()
            optimiser.step()
        optimiser.zero_grad()
        images = SEEN.images[tasks.queries[place]].double() / 255
        F.cross_entropy(alone(images)[1], tasks.query_labels).backward()
        total = {name: total[name] + alone.get_parameter(name).grad / len(tasks) for name in total}
    return total


@pytest.mark.parametrize("way", ["loop", "grouped", "vmap"])
def test_meta_gradient_is_of_first_order(way):
    network = small_network(classes=4).double()
    settings = fewshot.MamlTraining(inner_steps=3, inner_lr=0.05)
    tasks = Episodes(SEEN.labels, 2, ways=4, queries=3).draw(0, 3)
    found = meta_gradient(network, SEEN, tasks, settings, way)
    for name, gradient in first_order(network, tasks, 3, 0.05).items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-6)  # images are float32


def test_maml_is_plain_training():
    settings = fewshot.MamlTraining(
        iterations=3, tasks=2, shots=2, queries=3, lr=0.01, inner_lr=0.05, inner_steps=2, seed=3
    )
    network, alone = (small_network(classes=4).double() for _ in range(2))
    fewshot.train_maml(network, SEEN, settings)
    optimiser = torch.optim.Adam(alone.parameters(), lr=0.01)
    episodes = Episodes(SEEN.labels, 2, ways=4, queries=3, seed=3)
    for number in range(3):
        for name, gradient in first_order(alone, episodes.draw(2 * number, 2), 2, 0.05).items():
            alone.get_parameter(name).grad = gradient
        optimiser.step()
    # The gradient of a bias before a normalisation is zero, but for rounding, and Adam magnifies that.
    left, right = (
        {name: value for name, value in each.state_dict().items() if not name.endswith(".0.bias")}
        for each in (network, alone)
    )
    for name, value in left.items():
        torch.testing.assert_close(value, right[name], rtol=1e-3, atol=1e-4)


def test_maml_learns(pool):
    network = small_network(classes=4)
    settings = fewshot.MamlTraining(iterations=12, shots=3, queries=4, lr=0.01, inner_lr=0.1, task_steps=8)
    fewshot.train_maml(network, SEEN, settings)
    assert judge(fewshot.MamlTasks(network, pool, settings), pool).mean > 0.5


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_weights_are_float32_in_any_precision(pool, precision):
    exact, network = small_network(classes=7), small_network(classes=7)
    short = {"ways": 4, "shots": 2, "queries": 4, "episodes": 3}
    settings = fewshot.MetaTraining(**short, precision=precision)
    fewshot.train_protonet(exact, SEEN, fewshot.MetaTraining(**short), temperature=4.0)
    fewshot.train_protonet(network, SEEN, settings, temperature=4.0)
    assert close(exact, network) == (precision == "float32")
    assert close(exact, network, atol=0.05), "bfloat16 is another rounding, no other training"
    fewshot.train_neg_cosine(network, SEEN, fewshot.NegCosineTraining(epochs=1, precision=precision))
    network = one_student(network, 4, 0)
    settings = fewshot.MamlTraining(iterations=2, shots=2, queries=3, precision=precision)
    fewshot.train_maml(network, SEEN, settings)
    assert all(value.dtype == torch.float32 for value in network.parameters())
    assert all(bool(value.isfinite().all()) for value in network.parameters())
    assert 0 <= judge(fewshot.MamlTasks(network, pool, settings), pool, tasks=2).mean <= 1


def test_maml_normalises_the_queries_of_a_task_together_and_no_others(pool):
    method = fewshot.MamlTasks(small_network(classes=4), pool, fewshot.MamlTraining(task_steps=1))
    tasks = Episodes(pool.labels, 3, ways=4, queries=5, seed=1).draw(0, 12)
    other = Episodes(pool.labels, 3, ways=4, queries=5, seed=1).draw(0, 12)
    other.rows[6:, :, 4:] = other.rows[6:, :1, 4:5]  # all queries but the first of one class
    predicted, again = (method(each).view(12, 4, 5)[:, :, 0] for each in (tasks, other))
    assert torch.equal(predicted[:6], again[:6])
    assert not torch.equal(predicted[6:], again[6:])


def test_maml_knows_its_ways(pool):
    with pytest.raises(UserError, match="tasks of 9 ways, not of 4"):
        judge(fewshot.MamlTasks(small_network(), pool), pool)
