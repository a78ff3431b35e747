from functools import partial

import pytest
import torch
from tiny import cross_entropy, same_weights, tiny_batches, tiny_network

from refilled.data import Batch, Batches
from refilled.methods import Stage, get_method
from refilled.training import Reporter, Teachers, TrainSettings, compiled, engine, take_turns, train, training
from refilled.training.epochs import Snapshot, start_momenta
from refilled.training.step import PlainStep
from told import Told


def distilled(method: str, augment: str = "crop-flip", **settings):
    teacher, student = tiny_network(7, "wrn-10-2").eval().requires_grad_(False), tiny_network(1)
    batches = tiny_batches(augment=augment)
    chosen = get_method(method)
    stages = chosen.stages(teacher, student, batches, chosen.settings(), 2)
    train(stages, student, batches, TrainSettings(epochs=2, lr=0.05, **settings))
    return student


@pytest.mark.parametrize("method", ["student", "refilled", "refilled-gamma", "rkd", "kd", "sp"])
@pytest.mark.parametrize("augment", ["crop-flip", "none"])  # the teacher is asked, or looked up
def test_the_fast_way_does_the_same_as_the_plain_one(method, augment):
    plain, fast = distilled(method, augment, step="plain"), distilled(method, augment)
    for (name, a), b in zip(plain.state_dict().items(), fast.state_dict().values()):
        assert torch.allclose(a.float(), b.float(), atol=1e-4), (
            name
        )  # later, a pair of near distances would change places


def test_trainings_in_turns_end_as_each_would_alone(tmp_path):
    def one(seed, folder=None):
        network, drop = tiny_network(seed), torch.nn.Dropout(0.3)

        def loss(batch: Batch) -> dict[str, torch.Tensor]:
            logits = network.classify(drop(network.embed(batch.images)))
            return {"cross_entropy": torch.nn.functional.cross_entropy(logits, batch.labels)}

        stage = Stage("only", 3 + seed, list(network.parameters()), loss)
        settings = TrainSettings(epochs=3 + seed, seed=seed)
        return network, training([stage], network, tiny_batches(seed=seed), settings, folder=folder)

    alone = [one(seed) for seed in range(3)]
    for _, steps in alone:
        take_turns([steps], 1)
    together = [one(seed, tmp_path / str(seed)) for seed in range(3)]
    seconds = take_turns([steps for _, steps in together], 3)
    assert len(seconds) == 3
    assert all(second > 0 for second in seconds)
    for (a, _), (b, _) in zip(alone, together):
        assert same_weights(a, b)
    assert all((tmp_path / str(seed) / "checkpoint" / "last.safetensors").exists() for seed in range(3))


def test_generations_that_one_training_asks_are_not_remembered():
    """Its teacher is, which others may ask too."""
    teacher, student, chosen = tiny_network(7).eval(), tiny_network(1), get_method("ban")
    stages = chosen.stages(teacher, student, tiny_batches(), chosen.settings(generations=3), 6)
    teachers = Teachers()
    train(stages, student, tiny_batches(), TrainSettings(epochs=6), teachers=teachers)
    assert [folded.source[0] for folded in teachers._folded] == [teacher]


def test_a_problem_in_one_of_several_ends_all(tmp_path):
    good, bad = tiny_network(0), tiny_network(1)

    def broken(batch: Batch) -> dict[str, torch.Tensor]:
        return {"broken": bad(batch.images)[1].sum() * float("nan")}

    batches = tiny_batches()
    trainings = [
        training([cross_entropy(good)], good, batches, TrainSettings(epochs=3)),
        training([Stage("s", 3, list(bad.parameters()), broken)], bad, batches, TrainSettings(epochs=3)),
    ]
    with pytest.raises(Exception, match="'broken' became nan"):
        take_turns(trainings, 2)
    with pytest.raises(StopIteration):  # the others are closed, not left hanging
        next(trainings[0])


def test_a_snapshot_puts_everything_back():
    network, beside = tiny_network(), torch.nn.Linear(3, 3)
    stage = cross_entropy(network)
    step = PlainStep(stage, 0.9, 5e-4)
    start_momenta(step)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    snapshot = Snapshot(step, [network, beside])
    for batch in tiny_batches().epoch(0):
        step(batch, 0.1)
    assert not torch.equal(network.stem.weight, before["stem.weight"])
    snapshot.restore()
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(not state["momentum_buffer"].any() for state in step.optimizer.state.values())


def test_momenta_of_zero_are_none_at_all():
    networks = tiny_network(), tiny_network()
    steps = [PlainStep(cross_entropy(network), 0.9, 5e-4) for network in networks]
    start_momenta(steps[1])
    for batch in tiny_batches().epoch(0):
        for step in steps:
            step(batch, 0.1)
    assert same_weights(*networks)


def compiled_run(monkeypatch, backend, around=True):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    steps = 3 * len(tiny_batches())
    monkeypatch.setattr(engine, "AROUND_PAYS_FROM", steps if around else steps + 1)
    torch.compiler.reset()
    compiled._compiled.cache_clear()
    told, network = Told(), tiny_network()
    train(
        [cross_entropy(network)],
        network,
        tiny_batches(),
        TrainSettings(epochs=3, compile=True),
        reporter=told,
    )
    compiled._compiled.cache_clear()
    return network, told.lines


def test_a_compiled_loss_is_used_and_the_step_it_is_tried_with_leaves_no_trace(monkeypatch):
    calls = []

    def backend(graph, inputs):
        return lambda *values: calls.append(1) or graph(*values)

    network, lines = compiled_run(monkeypatch, backend)
    assert len(calls) >= 2 * (3 * 3 + 1)  # network and loss, in each step and in the one that is tried
    assert [line for line in lines if "compil" in line] == [
        "stage classifier: compiling (up to a minute the first time)"
    ]
    plain = tiny_network()
    train([cross_entropy(plain)], plain, tiny_batches(), TrainSettings(epochs=3))
    assert same_weights(network, plain)


def test_in_a_short_run_only_the_network_is_compiled(monkeypatch):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled_run(monkeypatch, backend)
    both, graphs[:] = len(graphs), []
    network, _ = compiled_run(monkeypatch, backend, around=False)
    assert 1 <= len(graphs) < both
    plain = tiny_network()
    train([cross_entropy(plain)], plain, tiny_batches(), TrainSettings(epochs=3))
    assert same_weights(network, plain)


def test_a_step_is_tried_as_it_will_be_made(monkeypatch):
    """In training mode, though a validation before it left the student in the other one."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    torch.compiler.reset()
    student, modes = tiny_network().eval(), []

    def loss(batch: Batch) -> dict[str, torch.Tensor]:
        modes.append(student.training)
        return {"cross_entropy": torch.nn.functional.cross_entropy(student(batch.images)[1], batch.labels)}

    def validate(stage):
        student.eval()
        return {"accuracy": 0.5}

    stages = [Stage(name, 2, list(student.parameters()), loss) for name in ("first", "second")]
    how = TrainSettings(epochs=4, compile=True, validate_every=1)
    train(stages, student, tiny_batches(), how, validate=validate)
    assert len(modes) == 2 * (1 + 2 * len(tiny_batches()))
    assert all(modes)


def test_what_cannot_be_compiled_is_run_as_it_is_and_said(monkeypatch):
    def backend(graph, inputs):
        raise RuntimeError("no compiler here\nand a long story")

    network, lines = compiled_run(monkeypatch, backend)
    assert lines[1] == (
        "stage classifier: the loss cannot be compiled (RuntimeError: no compiler here); it is run as it is"
    )
    plain = tiny_network()
    train([cross_entropy(plain)], plain, tiny_batches(), TrainSettings(epochs=3))
    assert same_weights(network, plain)


def test_layers_beside_the_student_are_kept_in_checkpoints(tmp_path):
    class Stop(Exception):
        pass

    class StopAfter(Reporter):
        def epoch(self, record):
            if record["epoch"] == 3:
                raise Stop

    begun = []

    def run(folder, resume=False, reporter=None):
        network = tiny_network()
        torch.manual_seed(4)
        beside = torch.nn.Linear(network.dim, 3)
        memory = torch.nn.BatchNorm1d(3)
        layers = torch.nn.Sequential(beside, memory)

        def loss(batch: Batch) -> dict[str, torch.Tensor]:
            logits = layers(network.embed(batch.images))
            return {"cross_entropy": torch.nn.functional.cross_entropy(logits, batch.labels)}

        parameters = [*network.parameters(), *layers.parameters()]
        stage = Stage("s", 5, parameters, loss, beside=layers, begin=lambda: begun.append(1))
        settings = TrainSettings(epochs=5, checkpoint_seconds=0)
        train([stage], network, tiny_batches(), settings, folder=folder, resume=resume, reporter=reporter)
        return network, layers

    whole, layers = run(tmp_path / "whole")
    with pytest.raises(Stop):
        run(tmp_path / "cut", reporter=StopAfter())
    again, resumed = run(tmp_path / "cut", resume=True)
    assert same_weights(whole, again)
    assert same_weights(layers, resumed)
    assert len(begun) == 2  # not when it goes on


def test_progress_tells_how_far_a_stage_is():
    network, seen = tiny_network(), []

    def loss(batch: Batch) -> dict[str, torch.Tensor]:
        seen.append(float(batch.progress))
        return {"mean": network(batch.images)[1].mean()}

    batches: Batches = tiny_batches()
    train(
        [Stage("s", 2, list(network.parameters()), loss)], network, batches, TrainSettings(epochs=2, lr=1e-3)
    )
    assert seen == pytest.approx([number / 6 for number in range(6)])


def test_jobs_take_each_others_places_and_results_keep_their_order():
    running, most, begun = [], [], []

    def job(number, steps):
        begun.append(number)
        running.append(number)
        for _ in range(steps):
            most.append(len(running))
            yield
        running.remove(number)
        return number * 10

    lengths = [3, 1, 4, 1, 5, 9, 2]
    jobs = (job(number, steps) for number, steps in enumerate(lengths))
    assert take_turns(jobs, at_once=3) == [number * 10 for number in range(7)]
    assert max(most) == 3
    assert begun == list(range(7))
    assert take_turns([], at_once=2) == []


def test_the_first_epoch_is_kept_at_once(tmp_path):
    """However rarely checkpoints are written, an early interruption does not lose everything."""

    class Stopped(Told):
        def epoch(self, record):
            if record["epoch"] == 2:
                raise KeyboardInterrupt

    network = tiny_network()
    settings = TrainSettings(epochs=4, checkpoint_seconds=1e9)
    with pytest.raises(KeyboardInterrupt):
        train(
            [cross_entropy(network)], network, tiny_batches(), settings, folder=tmp_path, reporter=Stopped()
        )
    told, again = Told(), tiny_network()
    train(
        [cross_entropy(again)], again, tiny_batches(), settings, folder=tmp_path, resume=True, reporter=told
    )
    assert told.lines[0] == "going on after epoch 1 of stage classifier"
    whole = tiny_network()
    train([cross_entropy(whole)], whole, tiny_batches(), settings)
    assert same_weights(again, whole)
