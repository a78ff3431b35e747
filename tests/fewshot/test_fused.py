"""Kernels for many ConvNets at once: the same as torch, task by task.

They need Triton, and a GPU or its interpreter (TRITON_INTERPRET=1, on a CPU).
"""

import os

import pytest
import torch
from torch.nn import functional as F

from refilled.errors import UserError
from refilled.fewshot import Episodes, RefilledTasks, TaskTraining, Views, ask_teacher, start_students
from refilled.methods.refilled_settings import TwoStageSettings

from .world import make_pool, small_network

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a CUDA device or TRITON_INTERPRET=1", allow_module_level=True)
pytest.importorskip("triton", reason="needs Triton")
fused = pytest.importorskip("refilled.fewshot.fused")
EPS = 1e-5


@pytest.fixture(autouse=True)
def exact_products():
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def reference(x, weight, bias, gamma, beta, known=None):
    """One task after the other: maps, means and variances; or maps by known ones."""
    maps, means, variances = [], [], []
    for task in range(len(x)):
        raw = F.conv2d(x[task].permute(0, 3, 1, 2), weight[task], bias[task], padding=1)
        means.append(raw.mean(dim=(0, 2, 3)))
        variances.append(raw.var(dim=(0, 2, 3), unbiased=False))
        by = (None, None) if known is None else (known[0][task], known[1][task])
        normal = F.batch_norm(raw, *by, gamma[task], beta[task], training=known is None, eps=EPS)
        maps.append(F.max_pool2d(normal, 2).relu().permute(0, 2, 3, 1))
    return torch.stack(maps), torch.stack(means), torch.stack(variances)


def block(x, weight, bias, gamma, beta, mean=None, variance=None):
    return fused.Block.apply(x, weight, bias, gamma, beta, mean, variance, EPS)


def gradients_of(maps, given, upstream):
    """For all that has one; the first block's images have none."""
    return torch.autograd.grad(maps, [each for each in given if each.requires_grad], upstream)


def inputs(channels, side, tasks=2, images=3, outputs=16, width=None):
    generator = torch.Generator().manual_seed(channels + side)

    def draw(*shape):
        return torch.randn(*shape, generator=generator).to(DEVICE).requires_grad_()

    return (
        draw(tasks, images, side, width or side, channels).detach().requires_grad_(channels >= 16),
        draw(tasks, outputs, channels, 3, 3),
        draw(tasks, outputs),
        draw(tasks, outputs),  # scales of either sign
        draw(tasks, outputs),
    )


@pytest.mark.parametrize(
    ("channels", "side", "width"), [(3, 8, 8), (3, 9, 7), (1, 4, 4), (16, 6, 6), (32, 5, 10), (64, 2, 3)]
)
def test_maps_and_gradients(channels, side, width):
    given = inputs(channels, side, width=width)
    found, expected = block(*given), reference(*given)
    for each, wanted in zip(found, expected):
        torch.testing.assert_close(each, wanted, atol=1e-4, rtol=1e-4)
    upstream = torch.randn_like(expected[0])
    gradients = gradients_of(found[0], given, upstream)
    for each, wanted in zip(gradients, gradients_of(expected[0], given, upstream)):
        torch.testing.assert_close(each, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("channels", "side"), [(3, 9), (16, 6)])
def test_known_statistics(channels, side):
    given = inputs(channels, side)
    means, variances = torch.randn(2, 16, device=DEVICE), 20 * torch.rand(2, 16, device=DEVICE) + 1
    found = block(*given, means, variances)[0]
    expected = reference(*given, known=(means, variances))[0]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    upstream = torch.randn_like(expected)
    gradients = gradients_of(found, given, upstream)
    for each, wanted in zip(gradients, gradients_of(expected, given, upstream)):
        torch.testing.assert_close(each, wanted, atol=1e-3, rtol=1e-4)


def test_many_programs_and_parts(monkeypatch):
    monkeypatch.setattr(fused, "ROWS", 16)
    monkeypatch.setattr(fused, "STEP", 16)
    given = inputs(16, 9, images=3)
    found, expected = block(*given)[0], reference(*given)[0]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    upstream = torch.randn_like(expected)
    gradients = gradients_of(found, given, upstream)
    for each, wanted in zip(gradients, gradients_of(expected, given, upstream)):
        torch.testing.assert_close(each, wanted, atol=1e-4, rtol=1e-4)


def test_of_equal_pixels_the_first_has_the_gradient():
    x, weight, bias, gamma, beta = inputs(16, 8)
    with torch.no_grad():
        x.copy_(x[:, :, :1, :1].round())  # one colour: all pixels inside are equal, exactly
        weight.copy_((2 * weight).round())
        beta.fill_(3.0)  # and above zero
    given = (x, weight, bias, gamma, beta)
    found, expected = block(*given)[0], reference(*given)[0]
    upstream = torch.randn_like(expected)
    gradients = gradients_of(found, given, upstream)
    for each, wanted in zip(gradients, gradients_of(expected, given, upstream)):
        torch.testing.assert_close(each, wanted, atol=1e-3, rtol=1e-3)


def test_half_precision_is_near():
    given = inputs(64, 8, outputs=64)
    x, *others = given
    half = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # the interpreter cannot multiply the former
    found = block(x.to(half), *others)[0]
    expected = reference(*given)[0]
    assert found.dtype == half
    assert (found.float() - expected).abs().mean() < 0.01 * expected.abs().mean()
    upstream = torch.randn_like(expected)
    gradients = gradients_of(found, given, upstream.to(half))
    for each, wanted in zip(gradients, gradients_of(expected, given, upstream)):
        assert each.dtype == torch.float32
        if wanted.abs().max() > 1e-3:  # that of the bias is zero
            assert F.cosine_similarity(each.flatten(), wanted.flatten(), dim=0) > 0.99


def test_students_and_trainings_equal_the_loop():
    pool = make_pool()
    pool = type(pool)(pool.images.to(DEVICE), pool.labels.to(DEVICE), pool.classes)
    tasks = Episodes(pool.labels, 3, ways=4, queries=4, seed=1).draw(0, 3)
    network, views = small_network().to(DEVICE), Views(pool)
    images = views.plain(tasks.support)
    outputs = {}
    for way in ("loop", "fused"):
        students = start_students(network, tasks, scratch=True, way=way)
        z, logits = students(images, training=True)
        (z.square().sum() + logits.square().sum()).backward()
        with torch.no_grad():
            known, _ = students(images, training=False)
        outputs[way] = (z, logits, known, *students.statistics.values())
        outputs[way] += tuple(value.grad for value in students.weights.values())
    for each, wanted in zip(outputs["fused"], outputs["loop"]):
        torch.testing.assert_close(each, wanted, atol=2e-4, rtol=2e-3)

    training = TaskTraining(steps=4, per_class=4, lr=0.02, precision="float32")
    own = TwoStageSettings()
    trained = {
        way: RefilledTasks(ask_teacher(network, views), network, views, training, own, way=way).train(tasks)
        for way in ("loop", "fused")
    }
    for name, value in trained["fused"].weights.items():
        torch.testing.assert_close(value, trained["loop"].weights[name], atol=1e-3, rtol=1e-2)


def test_what_cannot_be_fused_is_said():
    tasks = Episodes(make_pool().labels, 2, ways=4, queries=4).draw(0, 1)
    students = start_students(small_network("convnet-2").to(DEVICE), tasks, way="fused")
    with pytest.raises(UserError, match="at least 4 pixels; take matrices"):
        students(torch.rand(1, 2, 3, 3, 3, device=DEVICE), training=True)
