import json

import pytest
import torch
from tiny import cross_entropy, same_weights, tiny_batches, tiny_network

from interruption import Crash, CrashAt
from refilled.data import Batch
from refilled.methods import Stage
from refilled.training import LossIsNotFinite, MetricsLog, TrainSettings, train

SETTINGS = TrainSettings(epochs=6, batch_size=8, checkpoint_seconds=0)


def two_stages(network):
    return [cross_entropy(network, 3, "first"), cross_entropy(network, 3, "second")]


def trained(folder=None, *, seed=0, reporter=None, resume=False, network=None, settings=SETTINGS):
    network = network or tiny_network(seed=seed)
    train(
        two_stages(network),
        network,
        tiny_batches(),
        settings,
        folder=folder,
        resume=resume,
        reporter=reporter,
    )
    return network


def metrics(folder):
    """What was logged, but for the speed."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "images_per_second"} for line in lines]


def test_it_learns():
    network, batches = tiny_network(), tiny_batches()
    train([cross_entropy(network, 15)], network, batches, TrainSettings(epochs=15, batch_size=8))
    predicted = network(next(batches.ordered(24)).images)[1].argmax(1)
    assert (predicted == batches.labels).double().mean() > 0.9
    assert not network.training


def test_a_stage_may_want_images_of_a_class_side_by_side():
    network, seen = tiny_network(), []

    def loss(batch):
        seen.append(batch.labels.tolist())
        return {"cross_entropy": torch.nn.functional.cross_entropy(network(batch.images)[1], batch.labels)}

    stage = Stage("pairs", 2, list(network.parameters()), loss, group=4)
    train([stage], network, tiny_batches(), TrainSettings(epochs=2, batch_size=8))
    fours = [labels[at : at + 4] for labels in seen for at in (0, 4)]
    assert all(len(set(four)) == 1 for four in fours)
    assert len({tuple(labels) for labels in seen}) > 1


def test_the_same_seed_gives_the_same_weights_and_another_does_not():
    assert same_weights(trained(), trained())
    other = TrainSettings(epochs=6, batch_size=8, seed=1)
    assert not same_weights(trained(), trained(settings=other, seed=1))


@pytest.mark.parametrize(
    ("stage", "epoch"), [("first", 0), ("first", 1), ("first", 2), ("second", 0), ("second", 2)]
)
def test_an_interrupted_run_goes_on_exactly(tmp_path, stage, epoch):
    whole = trained(tmp_path / "whole")
    with pytest.raises(Crash):
        trained(tmp_path / "cut", reporter=CrashAt(stage, epoch))
    resumed = trained(
        tmp_path / "cut", resume=True, network=tiny_network(seed=99 if stage == "second" else 0)
    )
    assert same_weights(whole, resumed)
    lines = metrics(tmp_path / "whole")
    assert metrics(tmp_path / "cut") == lines
    assert [line["epoch"] for line in lines] == [1, 2, 3, 1, 2, 3]


def test_dropout_draws_the_same_after_resuming(tmp_path):
    def stages(network):
        drop = torch.nn.Dropout(0.5)

        def loss(batch: Batch) -> dict[str, torch.Tensor]:
            logits = network.classify(drop(network.embed(batch.images)))
            return {"cross_entropy": torch.nn.functional.cross_entropy(logits, batch.labels)}

        return [Stage("first", 4, list(network.parameters()), loss)]

    def run(folder, resume=False, reporter=None):
        network = tiny_network()
        train(
            stages(network),
            network,
            tiny_batches(),
            SETTINGS,
            folder=folder,
            resume=resume,
            reporter=reporter,
        )
        return network

    whole = run(tmp_path / "whole")
    with pytest.raises(Crash):
        run(tmp_path / "cut", reporter=CrashAt("first", 2))
    torch.rand(17)  # whatever the process drew meanwhile
    assert same_weights(whole, run(tmp_path / "cut", resume=True))


def test_a_line_that_a_crash_cut_short_is_dropped(tmp_path):
    trained(tmp_path)
    log = MetricsLog(tmp_path / "metrics.jsonl")
    with open(log.path, "a") as file:
        file.write('{"stage": "sec')
    assert len(log.read()) == 6
    log.rewind(1, 1)
    assert [(r["stage_index"], r["epoch"]) for r in log.read()] == [(0, 1), (0, 2), (0, 3), (1, 1)]


def test_a_loss_that_is_no_number_stops_names_itself_and_keeps_the_checkpoint(tmp_path):
    network, calls = tiny_network(), []

    def loss(batch: Batch) -> dict[str, torch.Tensor]:
        calls.append(1)
        bad = float("nan") if len(calls) == 5 else 1.0
        return {"good": network(batch.images)[1].mean(), "bad": network(batch.images)[1].sum() * bad}

    with pytest.raises(LossIsNotFinite, match=r"'bad' became nan in stage 'only', epoch 2, step 2") as error:
        train(
            [Stage("only", 3, list(network.parameters()), loss)],
            network,
            tiny_batches(),
            SETTINGS,
            folder=tmp_path,
        )
    assert "\n" not in str(error.value)
    kept = tiny_network(seed=3)
    from refilled.training.checkpoint import Checkpoint

    checkpoint = Checkpoint(tmp_path / "checkpoint" / "last.safetensors", "")
    checkpoint.restore_student(kept)
    assert checkpoint.position.epoch == 1
    assert all(torch.isfinite(value).all() for value in kept.state_dict().values())


def test_spoilt_weights_are_never_saved(tmp_path):
    network = tiny_network()
    weight = network.head.weight

    def loss(batch: Batch) -> dict[str, torch.Tensor]:
        return {"fine": weight.sum() * 1e38}  # finite, but its update overflows

    settings = TrainSettings(epochs=1, batch_size=24, lr=1e30, checkpoint_seconds=0)
    with pytest.raises(LossIsNotFinite, match="weights are no longer finite"):
        train(
            [Stage("only", 1, [weight], loss)],
            network,
            tiny_batches(batch_size=24),
            settings,
            folder=tmp_path,
        )
    assert not (tmp_path / "checkpoint").exists()


def test_validation_happens_when_asked_and_at_the_end():
    network, judged = tiny_network(), []

    def validate(stage: Stage) -> dict[str, float]:
        judged.append(stage.name)
        return {"accuracy": 0.5}

    settings = TrainSettings(epochs=5, batch_size=8, validate_every=2)
    train([cross_entropy(network, 5)], network, tiny_batches(), settings, validate=validate)
    assert len(judged) == 3  # after epochs 2, 4 and 5
