"""The losses of many tasks are those of ReFilled's own stages, task by task."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from refilled.data import Batches
from refilled.errors import UserError
from refilled.fewshot import Episodes, RefilledTasks, TaskTraining, Views, ask_teacher
from refilled.fewshot.refilled import TeacherView, classifier_loss, comparison_losses
from refilled.fewshot.training import cross_entropies, draw_steps
from refilled.methods.refilled_settings import RefilledSettings, TwoStageSettings
from refilled.methods.refilled_terms import ClassifierTerm, comparison_term

from .world import small_network


def relative(a, b):
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [{}, {"margin": 0.3}, {"max_impostors": 2}, {"comparison_scale": 7.0}, {"comparison_tau_student": 0.5}],
)
def test_comparison(options):
    torch.manual_seed(0)
    settings = RefilledSettings(**options)
    student, teacher = torch.randn(4, 15, 6, requires_grad=True), torch.randn(4, 15, 9)
    labels = torch.arange(5).repeat_interleave(3)
    found = comparison_losses(student, teacher, labels, settings)
    wanted = torch.stack([comparison_term(*each, labels, settings) for each in zip(student, teacher)])
    relative(found, wanted)
    relative(*(torch.autograd.grad(loss.sum(), student)[0] for loss in (found, wanted)))
    assert found.shape == (4,)
    assert (found > 0).all()


def test_comparison_of_equal_embeddings_is_finite():
    student = torch.zeros(2, 6, 4, requires_grad=True)
    losses = comparison_losses(
        student + 1, torch.rand(2, 6, 3), torch.arange(2).repeat_interleave(3), RefilledSettings()
    )
    losses.sum().backward()
    assert torch.equal(losses, torch.zeros(2))
    assert torch.isfinite(student.grad).all()


@pytest.mark.parametrize("posterior", ["dot", "scaled", "cosine", "literal"])
@pytest.mark.parametrize("weight", ["head", "pl", "gap", "none"])
def test_classifier(pool, posterior, weight):
    settings = RefilledSettings(posterior=posterior, weight=weight, strength=3.0, tau_student=1.5)
    views, teacher = Views(pool, count=2), small_network("convnet-1").eval()
    tasks = Episodes(pool.labels, 3, ways=4, queries=4).draw(0, 3)
    step = draw_steps(tasks, 1, 4, views.count)[0]
    answers = ask_teacher(teacher, views)
    torch.manual_seed(0)
    logits = torch.randn(3, 16, 4, requires_grad=True)
    found = classifier_loss(answers, tasks, settings)(torch.zeros(3, 16, 64), logits, step)
    wanted = []
    for place in range(3):
        support = Batches(pool.images[tasks.support[place]], tasks.support_labels, 12)
        term = ClassifierTerm(teacher, support, 4, settings)
        with torch.no_grad():
            teacher_z = teacher.embed(views.show(step.rows[place], step.views[place]))
        wanted.append(
            F.cross_entropy(logits[place], step.labels) + term(logits[place], teacher_z, step.labels)
        )
    torch.testing.assert_close(found, torch.stack(wanted), rtol=1e-4, atol=1e-5)
    one, other = (torch.autograd.grad(sum(loss), logits)[0] for loss in (found, wanted))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_literal_posterior_needs_embeddings_that_are_not_negative(pool):
    tasks = Episodes(pool.labels, 3, ways=4, queries=4).draw(0, 2)
    answers = TeacherView(torch.randn(len(pool), 1, 5), torch.randn(len(pool), 1, 3))
    with pytest.raises(UserError, match="never negative"):
        classifier_loss(answers, tasks, TwoStageSettings(posterior="literal"))


def test_cross_entropies_of_tasks():
    logits, labels = torch.randn(2, 12, 4), torch.arange(4).repeat_interleave(3)
    wanted = torch.stack([F.cross_entropy(each, labels) for each in logits])
    relative(cross_entropies(logits, labels), wanted)


def test_a_step_too_few_is_refused(pool):
    views = Views(pool, count=1)
    method = RefilledTasks(
        ask_teacher(small_network(), views),
        small_network(),
        views,
        TaskTraining(steps=1),
        TwoStageSettings(),
    )
    with pytest.raises(UserError, match="at least 2"):
        method.stages(Episodes(pool.labels, 3, ways=4, queries=4).draw(0, 1))


@pytest.mark.parametrize("way", ["loop", "grouped", "matrices"])
def test_bfloat16_is_near(pool, way):
    views = Views(pool, count=2)
    answers, tasks = (
        ask_teacher(small_network(), views),
        Episodes(pool.labels, 3, ways=4, queries=4).draw(0, 2),
    )
    training = TaskTraining(steps=4, per_class=3)
    own = TwoStageSettings()
    exact = RefilledTasks(answers, small_network(), views, training, own, way=way).train(tasks)
    training = replace(training, precision="bfloat16")
    rough = RefilledTasks(answers, small_network(), views, training, own, way=way).train(tasks)
    assert rough.weights["head.weight"].dtype == torch.float32
    for name, value in exact.weights.items():
        torch.testing.assert_close(rough.weights[name], value, rtol=0.2, atol=0.05)
