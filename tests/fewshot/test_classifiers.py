"""Classifiers on frozen embeddings for many tasks, beside those of one task, ours or scikit-learn's."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from refilled import evaluation, fewshot
from refilled.fewshot import Episodes, OnEmbeddings, run_tasks

LABELS = torch.arange(5).repeat_interleave(4)


@pytest.fixture
def embeddings():
    torch.manual_seed(0)
    centres = torch.randn(6, 5, 12)
    support = centres.repeat_interleave(4, dim=1) + torch.randn(6, 20, 12)
    queries = centres.repeat_interleave(7, dim=1) + torch.randn(6, 35, 12)
    return support, queries


def each(classify, embeddings):
    return torch.stack([classify(*task) for task in zip(*embeddings)])


def test_nearest_neighbour(embeddings):
    wanted = each(lambda s, q: evaluation.nearest_neighbour(s, LABELS, q), embeddings)
    assert torch.equal(fewshot.nearest_neighbour(embeddings[0], LABELS, embeddings[1]), wanted)


def test_nearest_class_mean(embeddings):
    wanted = each(lambda s, q: evaluation.nearest_class_mean(s, LABELS, q, 5), embeddings)
    assert torch.equal(fewshot.nearest_class_mean(embeddings[0], LABELS, embeddings[1]), wanted)


def test_prototypes(embeddings):
    def slow(support, queries):
        means = torch.stack([support[label == LABELS].mean(dim=0) for label in range(5)])
        return torch.stack([((query - means) ** 2).sum(dim=1).argmin() for query in queries])

    wanted = each(slow, embeddings)
    assert torch.equal(fewshot.prototypes(embeddings[0], LABELS, embeddings[1]), wanted)


def test_simple_shot_is_centred_first(embeddings):
    mean = torch.full((12,), 3.0)

    def slow(support, queries):
        support, queries = F.normalize(support - mean, dim=1), F.normalize(queries - mean, dim=1)
        means = torch.stack([support[label == LABELS].mean(dim=0) for label in range(5)])
        return torch.stack([(query - means).norm(dim=1).argmin() for query in queries])

    classify = fewshot.simple_shot(mean)
    assert torch.equal(classify(embeddings[0], LABELS, embeddings[1]), each(slow, embeddings))
    plain = fewshot.nearest_class_mean(embeddings[0], LABELS, embeddings[1])
    assert not torch.equal(classify(embeddings[0], LABELS, embeddings[1]), plain)


@pytest.mark.parametrize("penalty", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("kind", ["lr", "svm"])
def test_linear_classifiers_are_those_of_scikit_learn(embeddings, penalty, kind):
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import LinearSVC

    def make():
        if kind == "lr":
            return LogisticRegression(C=penalty, fit_intercept=False, tol=1e-10, max_iter=10_000)
        return LinearSVC(C=penalty, fit_intercept=False, dual=False, tol=1e-10, max_iter=100_000)

    def slow(support, queries):
        model = make().fit(F.normalize(support, dim=1).numpy(), LABELS.numpy())
        return torch.from_numpy(np.asarray(model.predict(F.normalize(queries, dim=1).numpy())))

    support, queries = (part.double() for part in embeddings)
    ours = (fewshot.logistic_regression if kind == "lr" else fewshot.support_vectors)(penalty)
    assert torch.equal(ours(support, LABELS, queries), each(slow, (support, queries)))


def test_accuracy_over_tasks():
    torch.manual_seed(0)
    labels = torch.arange(8).repeat(30)
    embeddings = F.one_hot(labels).float() + 0.5 * torch.randn(240, 8)
    episodes = Episodes(labels, 5)
    method = OnEmbeddings(embeddings, fewshot.nearest_class_mean)
    found = run_tasks(method, episodes, 40, at_once=16)
    values = []
    for number in range(40):
        task = episodes.draw(number, 1)
        predicted = evaluation.nearest_class_mean(
            embeddings[task.support[0]], task.support_labels, embeddings[task.queries[0]], 5
        )
        values.append((predicted == task.query_labels).double().mean().item())
    assert found.per_task == pytest.approx(values)
    assert found.mean == pytest.approx(np.mean(values))
    assert found.half_interval == pytest.approx(1.96 * np.std(values, ddof=1) / 40**0.5, rel=0.04)
    assert (found.tasks, found.ways, found.shots, found.queries, found.seed) == (40, 5, 5, 15, 0)
    assert 0.6 < found.mean < 1


def test_one_task_has_no_interval():
    labels = torch.arange(5).repeat(16)
    method = OnEmbeddings(F.one_hot(labels).float(), fewshot.nearest_neighbour)
    seen = []
    found = run_tasks(method, Episodes(labels, 1), 1, progress=lambda *each: seen.append(each))
    assert found.mean == 1
    assert np.isnan(found.half_interval)
    assert seen == [(1, 1)]
