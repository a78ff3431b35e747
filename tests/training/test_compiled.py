"""A loss in two compiled parts gives what the loss gives, and the network is compiled once for all."""

import shutil
from dataclasses import replace
from functools import partial

import pytest
import torch

from refilled import objectives
from refilled.data import Batches
from refilled.data.augment import AUGMENTATIONS, draw_views, show
from refilled.labels import LabelSpace
from refilled.methods import get_method
from refilled.models import load
from refilled.training import compiled
from refilled.training.compiled import CompiledLoss

CLASSES = LabelSpace("abcd")


@pytest.fixture
def graphs(monkeypatch):
    """Of each graph that is compiled, the number of its convolutions."""
    found = []

    def backend(graph, inputs):
        found.append(sum("conv" in str(node.target) for node in graph.graph.nodes))
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    torch.compiler.reset()
    compiled._compiled.cache_clear()
    yield found
    compiled._compiled.cache_clear()


@pytest.fixture
def compiled_anew():
    """Nothing that was compiled before is used."""
    import torch._inductor.config as inductor

    torch.compiler.reset()
    with inductor.patch({"force_disable_caches": True}):
        yield


def world(seed, spec="resnet-8", method="refilled"):
    torch.manual_seed(seed)
    teacher, student = load("resnet-8", CLASSES, image_size=8), load(spec, CLASSES, image_size=8)
    images = torch.randint(256, (16, 3, 8, 8), dtype=torch.uint8)
    batches = Batches(images, torch.arange(16) % 4, 8, "none")
    chosen = get_method(method)
    stages = chosen.stages(teacher.eval(), student, batches, chosen.settings(), 4)
    return student.train(), batches, stages


def one_batch(batches):
    """With the teacher's answers, so that the loss runs through the student alone."""
    batch = next(iter(batches.epoch(0)))
    return replace(batch, answers=torch.randn(len(batch.labels), 64))


def losses_and_gradients(loss, student, batch):
    student.zero_grad()
    losses = loss(batch)
    sum(losses.values()).backward()
    return losses, [p.grad for p in student.parameters() if p.grad is not None]


@pytest.mark.parametrize("spec", ["resnet-8", "wrn-10-1", "convnet-4", "mobilenet-0.25"])
@pytest.mark.parametrize("number", [0, 1])
def test_losses_and_gradients_are_those_of_the_loss(graphs, spec, number):
    student, batches, stages = world(0, spec)
    batch = one_batch(batches)
    expected = losses_and_gradients(stages[number].loss, student, batch)
    found = losses_and_gradients(CompiledLoss(stages[number].loss, student), student, batch)
    assert max(graphs) > 0
    torch.testing.assert_close(found, expected)
    assert not {"feature_maps", "responses", "embed_prepared", "embed", "features"} & set(vars(student))


def test_the_network_is_compiled_once_for_all_stages_and_seeds(graphs):
    """And for all statistics of pixels."""
    for seed in range(3):
        student, batches, stages = world(seed)
        student.normalise_by((0.1 * seed,) * 3, (0.2 + 0.1 * seed,) * 3)
        for stage in stages:
            CompiledLoss(stage.loss, student)(one_batch(batches))
    assert sum(count > 0 for count in graphs) == 1


def test_it_is_shared_by_methods_too(graphs):
    for method in ("student", "rkd"):
        student, batches, stages = world(0, method=method)
        for stage in stages:
            CompiledLoss(stage.loss, student)(one_batch(batches))
    assert sum(count > 0 for count in graphs) == 1


def test_who_looks_at_embeddings_gets_no_maps(graphs, monkeypatch):
    """Those would have to have gradients."""
    outputs = []
    real = torch.compile
    backend = real.keywords["backend"]

    def counted(graph, inputs):
        (found,) = [node for node in graph.graph.nodes if node.op == "output"]
        outputs.append(len(found.args[0]))
        return backend(graph, inputs)

    monkeypatch.setattr(torch, "compile", partial(real.func, backend=counted))
    student, batches, stages = world(0, "wrn-10-1", "student")
    CompiledLoss(stages[0].loss, student, around=False)(one_batch(batches))
    assert outputs == [1]
    CompiledLoss(
        lambda batch: {"x": student.features_and_embedding(batch.images)[1].sum()}, student, around=False
    )(one_batch(batches))
    assert outputs == [1, 4]


@pytest.mark.skipif(shutil.which("g++") is None, reason="the compiler's code for a CPU needs g++")
@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_compiled_views_are_the_same(compiled_anew, name):
    compiled.compiled_show.cache_clear()
    images = torch.randint(256, (6, 3, 16, 8), dtype=torch.uint8)
    views = draw_views(name, 6, (16, 8), None, images.device)
    torch.testing.assert_close(compiled.compiled_show()(images, name, views), show(images, name, views))


@pytest.mark.skipif(shutil.which("g++") is None, reason="the compiler's code for a CPU needs g++")
def test_compiled_draws_are_the_same_and_go_on(compiled_anew):
    """Numbers that wrap around, from a count that the step itself moves on."""
    _, _, (stage,) = world(0, method="crd")
    random, drawn = stage.beside.random, [[], []]
    fast = torch.compile(random)
    begin = stage.beside.drawn.clone()
    for draw, found in zip((random, fast), drawn):
        stage.beside.drawn.copy_(begin)
        found += [draw(4, 7), draw(4, 7)]
    torch.testing.assert_close(drawn[1], drawn[0])
    assert not torch.equal(*drawn[0])


def test_an_error_leaves_the_student_as_it_was(graphs):
    student, batches, _ = world(0)

    def fails(batch):
        student.embed(batch.images)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        CompiledLoss(fails, student)(one_batch(batches))
    assert "feature_maps" not in vars(student)


@pytest.mark.skipif(shutil.which("g++") is None, reason="the compiler's code for a CPU needs g++")
def test_a_view_that_is_kept_beside_what_it_views_is_not_written_over(compiled_anew):
    """A Gram matrix and its diagonal, both kept for the backward pass, share their memory."""
    torch.manual_seed(0)
    network = load("convnet-1", CLASSES, image_size=8)
    rows = torch.randn(8, 5, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(2, 8, 8, dtype=torch.float64)

    def loss(batch):
        gram = rows @ rows.T
        squared = gram.diagonal()[:, None] + gram.diagonal() - 2.0 * gram
        apart = squared > 1e-12
        squared = torch.where(apart, squared, 1.0)
        lengths, inverse = torch.where(apart, squared.sqrt(), 0.0), torch.where(apart, squared.rsqrt(), 0.0)
        return {"both": (weights[0] * lengths + weights[1] * inverse).sum()}

    (expected,) = torch.autograd.grad(loss(None)["both"], rows)
    (found,) = torch.autograd.grad(CompiledLoss(loss, network)(None)["both"], rows)
    torch.testing.assert_close(found, expected)


@pytest.mark.skipif(shutil.which("g++") is None, reason="the compiler's code for a CPU needs g++")
def test_columns_that_are_views_are_found_where_they_are(compiled_anew):
    """With index tensors that have gaps, and two threads, the compiler's code (PyTorch 2.13, CPU) counts rows
    of the gradient double and writes half of it beyond its end; the process may not survive that."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    network = load("convnet-1", CLASSES, image_size=8)
    here, there = torch.tensor([[4, 0], [5, 1], [6, 2], [7, 3]]).unbind(dim=1)
    student, teacher = torch.randn(64, 6, requires_grad=True), torch.randn(64, 8)

    def loss(batch):
        return {"head": objectives.shared_kd(student, teacher, here, there)}

    (expected,) = torch.autograd.grad(loss(None)["head"], student)
    try:
        (found,) = torch.autograd.grad(CompiledLoss(loss, network)(None)["head"], student)
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(found, expected)
