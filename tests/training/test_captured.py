"""The captured step, on a GPU; without one these tests are skipped and the plain parts stand for it."""

import pytest
import torch
from tiny import tiny_batches, tiny_network

from refilled.data import Batch, Batches
from refilled.methods import Stage, get_method
from refilled.training import Reporter, TrainSettings, engine, take_turns, train, training
from refilled.training.answers import Teachers
from refilled.training.captured import CapturedEpochs
from refilled.training.engine import make_epochs
from refilled.training.step import PlainStep
from told import Told

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def exact_convolutions():
    before = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = False, True
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = before


def on_gpu(batches: Batches) -> Batches:
    images, labels = batches.source.images.cuda(), batches.labels.cuda()
    return Batches(images, labels, batches.batch_size, batches.augment, batches.seed)


def weights(network) -> dict[str, torch.Tensor]:
    return {name: value.detach().float().cpu() for name, value in network.state_dict().items()}


def apart(a, b) -> float:
    """Largest difference of a weight, relative to 1 and its size together."""
    left, right = weights(a), weights(b)
    worst = [((left[name] - right[name]).abs() / (1 + left[name].abs())).max() for name in left]
    return float(torch.stack(worst).max())


def distilled(method: str, augment: str = "crop-flip", dropout: float = 0.0, own=None, **settings):
    teacher = tiny_network(7, "wrn-10-2").cuda().eval().requires_grad_(False)
    student, batches, told = tiny_network(1).cuda(), on_gpu(tiny_batches(augment=augment)), Told()
    for layer in student.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = dropout
    chosen = get_method(method)
    stages = chosen.stages(teacher, student, batches, chosen.settings(**(own or {})), 2)
    settings = {"precision": "float32"} | settings
    train(stages, student, batches, TrainSettings(epochs=2, lr=0.05, **settings), reporter=told)
    return student, told.lines


METHODS = [
    "student", "refilled", "refilled-few", "refilled-gamma", "refilled-authors", "refilled-lkd", "rkd", "sp",
    "kd", "dkd", "dist", "kd-standardised", "fitnet", "at", "nst", "vid", "kd-vid", "overhaul", "jacobian",
    "aml", "seed", "crd", "sskd", "ban",
]  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_a_captured_step_does_what_a_plain_one_does(method):
    plain, _ = distilled(method, step="plain")
    fast, said = distilled(method)
    assert said == []  # captured, not fallen back
    assert apart(plain, fast) < 1e-3


@pytest.mark.parametrize("augment", ["none", "crop", "resized-crop-flip"])
def test_every_augmentation_is_captured(augment):
    plain, _ = distilled("refilled", augment, step="plain")
    fast, said = distilled("refilled", augment)
    assert said == []
    assert apart(plain, fast) < 1e-3


def test_dropout_draws_the_same():
    plain, _ = distilled("student", dropout=0.3, step="plain")
    fast, said = distilled("student", dropout=0.3)
    assert said == []
    assert apart(plain, fast) < 1e-4


@pytest.mark.parametrize("method", ["student", "refilled"])
def test_mixtures_are_drawn_the_same(method):
    plain, _ = distilled(method, own={"mixtures": True}, step="plain")
    fast, said = distilled(method, own={"mixtures": True})
    assert said == []
    assert apart(plain, fast) < 1e-4


@pytest.mark.parametrize("compile", [False, True])
def test_the_teachers_head_speaks_the_same(compile, monkeypatch):
    monkeypatch.setattr(engine, "AROUND_PAYS_FROM", 0)
    plain, _ = distilled("refilled", own={"head_same": 1.0}, step="plain")
    fast, said = distilled("refilled", own={"head_same": 1.0}, compile=compile)
    assert not any("cannot" in line for line in said)
    assert apart(plain, fast) < 1e-3


def test_images_without_labels_are_captured_too():
    """At a small learning rate, as rounding grows with it: the captured step asks a teacher whose batch norms
    are folded away, which is 1e-7 apart, and at 0.05 one ReLU of the student that flips makes 2e-4 of it."""

    def learned(step):
        own = tiny_batches(augment="crop-flip")
        images = torch.cat([own.source.images, own.source.images.flip(2)]).cuda()
        batches = Batches(images, own.labels.cuda(), own.batch_size, own.augment, own.seed, unlabelled=5)
        teacher = tiny_network(7, "wrn-10-2").cuda().eval().requires_grad_(False)
        student, chosen = tiny_network(1).cuda(), get_method("refilled")
        stages = chosen.stages(teacher, student, batches, chosen.settings(), 4)
        settings = TrainSettings(epochs=4, lr=0.005, precision="float32", step=step)
        train(stages, student, batches, settings, reporter=Told())
        return student

    assert apart(learned("plain"), learned("auto")) < 1e-5


def test_bfloat16_learns_too():
    plain, _ = distilled("refilled", step="plain", precision="bfloat16")
    fast, said = distilled("refilled", precision="bfloat16")
    assert said == []
    assert apart(plain, fast) < 0.1


def test_what_cannot_be_captured_falls_back_and_is_said():
    network, batches, told = tiny_network().cuda(), on_gpu(tiny_batches()), Told()

    def loss(batch: Batch) -> dict[str, torch.Tensor]:
        logits = network(batch.images)[1]
        scale = 1.0 if logits.sum().item() > -1e9 else 2.0  # asks the host
        return {"ce": scale * torch.nn.functional.cross_entropy(logits, batch.labels)}

    stage = Stage("s", 3, list(network.parameters()), loss)
    settings = TrainSettings(epochs=3, precision="float32")
    train([stage], network, batches, settings, reporter=told)
    assert len(told.lines) == 1
    assert "cannot be captured in a CUDA graph" in told.lines[0]
    assert "\n" not in told.lines[0]
    plain = tiny_network().cuda()

    def same(batch: Batch) -> dict[str, torch.Tensor]:
        return {"ce": torch.nn.functional.cross_entropy(plain(batch.images)[1], batch.labels)}

    train(
        [Stage("s", 3, list(plain.parameters()), same)],
        plain,
        batches,
        TrainSettings(epochs=3, precision="float32", step="plain"),
    )
    assert apart(network, plain) < 1e-4
    _, said = distilled("student")  # and the next one is captured again
    assert said == []


def test_capturing_leaves_student_and_momenta_as_they_were():
    network, batches = tiny_network().cuda(), on_gpu(tiny_batches())
    before = weights(network)

    def loss(batch: Batch) -> dict[str, torch.Tensor]:
        return {"ce": torch.nn.functional.cross_entropy(network(batch.images)[1], batch.labels)}

    step = PlainStep(Stage("s", 3, list(network.parameters()), loss), 0.9, 5e-4)
    epochs = make_epochs(step, network, batches, TrainSettings(), Teachers(), 3, Reporter())
    assert isinstance(epochs, CapturedEpochs)
    assert all(torch.equal(before[name], value) for name, value in weights(network).items())
    assert all(not state["momentum_buffer"].any() for state in step.optimizer.state.values())


def test_trainings_on_streams_end_as_each_would_alone():
    def one(seed):
        network, batches = tiny_network(seed).cuda(), on_gpu(tiny_batches(seed=seed))
        teacher = tiny_network(7, "wrn-10-2").cuda().eval().requires_grad_(False)
        chosen = get_method("refilled")
        stages = chosen.stages(teacher, network, batches, chosen.settings(), 2)
        settings = TrainSettings(epochs=2, seed=seed, lr=0.05, precision="float32")
        return network, training(stages, network, batches, settings)

    alone = [one(seed) for seed in range(3)]
    for _, steps in alone:
        take_turns([steps], 1)
    together = [one(seed) for seed in range(3)]
    take_turns([steps for _, steps in together], 3)
    for (a, _), (b, _) in zip(alone, together):
        assert apart(a, b) < 1e-4


def test_graphs_that_run_at_the_same_time_do_not_disturb_each_other():
    """Large enough that libraries use their workspaces; strictly deterministic, to compare bits."""
    from refilled.models import load
    from refilled.training import make_deterministic

    names = [str(number) for number in range(50)]
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (512, 3, 32, 32), dtype=torch.uint8, generator=generator).cuda()
    labels = torch.randint(0, 50, (512,), generator=generator).cuda()

    def one(seed):
        torch.manual_seed(seed)
        student, teacher = (load("wrn-16-2", names, image_size=32).cuda() for _ in range(2))
        batches = Batches(images, labels, 256, "crop-flip", seed=seed)
        chosen = get_method("refilled")
        teacher.eval().requires_grad_(False)
        stages = chosen.stages(teacher, student, batches, chosen.settings(), 4)
        return student, training(stages, student, batches, TrainSettings(epochs=4, seed=seed))

    try:
        make_deterministic(True)
        alone, together = ([one(seed) for seed in range(4)] for _ in range(2))
        for _, steps in alone:
            take_turns([steps], 1)
        take_turns([steps for _, steps in together], 4)
    finally:
        make_deterministic(False)
    for (a, _), (b, _) in zip(alone, together):
        left, right = weights(a), weights(b)
        assert all(torch.equal(left[name], right[name]) for name in left)


def test_dropout_draws_the_same_in_turns():
    def one(seed):
        network, batches = tiny_network(seed).cuda(), on_gpu(tiny_batches(seed=seed))
        for layer in network.modules():
            if isinstance(layer, torch.nn.Dropout):
                layer.p = 0.3

        def loss(batch: Batch) -> dict[str, torch.Tensor]:
            return {"ce": torch.nn.functional.cross_entropy(network(batch.images)[1], batch.labels)}

        stage = Stage("s", 5, list(network.parameters()), loss)
        settings = TrainSettings(epochs=5, seed=seed, lr=0.05, precision="float32")
        return network, training([stage], network, batches, settings)

    alone, together = ([one(seed) for seed in range(3)] for _ in range(2))
    for _, steps in alone:
        take_turns([steps], 1)
    take_turns([steps for _, steps in together], 3)
    for (a, _), (b, _) in zip(alone, together):
        assert apart(a, b) < 1e-4


def test_a_captured_run_goes_on_from_its_checkpoint(tmp_path):
    class Stop(Exception):
        pass

    class StopAt(Reporter):
        def epoch(self, record):
            if record["epoch"] == 3:
                raise Stop

    def run(folder, resume=False, reporter=None):
        network, batches = tiny_network().cuda(), on_gpu(tiny_batches())

        def loss(batch: Batch) -> dict[str, torch.Tensor]:
            return {"ce": torch.nn.functional.cross_entropy(network(batch.images)[1], batch.labels)}

        settings = TrainSettings(epochs=5, checkpoint_seconds=0, precision="float32")
        stage = Stage("s", 5, list(network.parameters()), loss)
        train([stage], network, batches, settings, folder=folder, resume=resume, reporter=reporter)
        return network

    whole = run(tmp_path / "whole")
    with pytest.raises(Stop):
        run(tmp_path / "cut", reporter=StopAt())
    assert apart(whole, run(tmp_path / "cut", resume=True)) < 1e-4


def test_strict_determinism_gives_the_same_bits_twice():
    from refilled.training import make_deterministic

    try:
        make_deterministic(True)
        first, _ = distilled("refilled", deterministic=True)
        second, _ = distilled("refilled", deterministic=True)
    finally:
        make_deterministic(False)
    left, right = weights(first), weights(second)
    assert all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("method", ["student", "refilled", "refilled-few", "rkd", "at"])
@pytest.mark.parametrize("around", [False, True])
def test_a_compiled_step_does_what_a_plain_one_does(method, around, monkeypatch):
    monkeypatch.setattr(engine, "AROUND_PAYS_FROM", 0 if around else 10**9)
    plain, _ = distilled(method, step="plain")
    fast, said = distilled(method, compile=True)
    assert not any("cannot" in line for line in said)
    assert apart(plain, fast) < 1e-3
