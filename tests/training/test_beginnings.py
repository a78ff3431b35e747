"""First stages that trainings have in common are trained once, and nothing else changes."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tiny import cross_entropy, same_weights, tiny_batches, tiny_network
from torch.nn import functional as F

from refilled.data import Batches
from refilled.methods import Stage
from refilled.training import (
    Beginnings,
    LossIsNotFinite,
    MetricsLog,
    Reporter,
    Shares,
    TrainSettings,
    take_turns,
    training,
    turns,
)
from refilled.training.turns import WAITING

SETTINGS = TrainSettings(epochs=6, batch_size=8, checkpoint_seconds=0)
BATCHES, TEACHER = tiny_batches(), tiny_network(5)


class Counting(Reporter):
    """How many epochs were really trained."""

    def __init__(self):
        self.epochs = []

    def epoch(self, record):
        self.epochs.append((record["stage"], record["epoch"]))


def stages(network, recipe="same", factor=1.0, epochs=3, asks=TEACHER):
    """A first stage that trains a layer beside the network, and a second one that goes on with it."""
    beside = torch.nn.Linear(network.dim, 3)
    with torch.no_grad():
        beside.weight.fill_(0.01)
        beside.bias.zero_()

    def first(batch):
        said = beside(network.embed(batch.images))[: len(batch.labels)]
        return {"first": F.cross_entropy(said, batch.labels)}

    def second(batch):
        z, logits = network(batch.images[: len(batch.labels)])
        return {"second": factor * F.cross_entropy(logits + beside(z), batch.labels)}

    own = list(network.parameters())
    return [
        Stage("first", epochs, [*own, *beside.parameters()], first, asks=asks, beside=beside, recipe=recipe),
        Stage("second", 3, [*own, *beside.parameters()], second, beside=beside),
    ]


def job(
    beginnings, seed=0, settings=SETTINGS, batches=None, folder=None, resume=False, dropout=0,
    mean=None, **changes,
):  # fmt: skip
    """A network, how many epochs it was trained itself, and its training."""
    network, reporter = tiny_network(seed), Counting()
    network.dropout = dropout
    if mean is not None:
        network.normalise_by(mean, (0.3, 0.3, 0.3))
    steps = training(
        stages(network, **changes), network, batches or BATCHES, settings, beginnings=beginnings,
        reporter=reporter, folder=folder, resume=resume,
    )  # fmt: skip
    return network, reporter, steps


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_what_is_alike_is_trained_once_and_ends_as_it_would_alone(at_once, tmp_path):
    factors = (1.0, 0.5, 2.0)
    alone = [job(None, factor=factor, folder=tmp_path / f"alone {factor}") for factor in factors]
    beginnings = Beginnings()
    together = [job(beginnings, factor=factor, folder=tmp_path / f"with {factor}") for factor in factors]
    take_turns([steps for _, _, steps in alone], 1)
    seconds = take_turns([steps for _, _, steps in together], at_once)
    for (network, _, _), (expected, _, _) in zip(together, alone):
        assert same_weights(network, expected)
    assert sorted(len(reporter.epochs) for _, reporter, _ in together) == [3, 3, 6]
    assert not same_weights(together[0][0], together[1][0])
    assert min(seconds) > 0
    for factor in factors:
        logs = [
            MetricsLog(tmp_path / f"{how} {factor}" / "metrics.jsonl").read() for how in ("with", "alone")
        ]
        for record in (*logs[0], *logs[1]):
            del record["images_per_second"]
        assert logs[0] == logs[1]


def test_seconds_are_those_of_the_whole():
    """Of what was taken over, too: as if it were alone."""
    now, beginnings = {"s": 0.0}, Beginnings()

    def timed():
        network = tiny_network()

        def clock():
            now["s"] += 1.0
            return now["s"]

        return training(stages(network), network, BATCHES, SETTINGS, beginnings=beginnings, clock=clock)

    (first,) = take_turns([timed()], 1)
    (reached,) = [one.reached for one in beginnings.known]
    (second,) = take_turns([timed()], 1)
    assert reached.seconds < second <= first


def test_beside_each_other_all_have_the_seconds_of_the_whole(monkeypatch):
    """Every turn of a training takes a second; those that wait take none of it."""
    now, shares, beginnings = {"s": 0.0}, Shares(), Beginnings()
    monkeypatch.setattr(turns, "time", SimpleNamespace(monotonic=lambda: now["s"]))

    def start(clock):
        network = tiny_network()
        steps = training(stages(network), network, BATCHES, SETTINGS, beginnings=beginnings, clock=clock)

        def ticking():
            while True:
                try:
                    told = next(steps)
                except StopIteration as end:
                    return end.value
                now["s"] += told is not WAITING
                yield told

        return ticking()

    (alone,) = take_turns([Shares().own_part(start)], 1)
    beginnings.known.clear()
    now["s"] = 0.0
    found = take_turns([shares.own_part(start) for _ in range(4)], 4)
    assert found == pytest.approx([alone] * 4, rel=0.15)
    assert now["s"] < 2.7 * alone  # instead of four times
    assert shares.active == 0


OTHERS = {
    "another recipe": {"recipe": "other"},
    "no recipe": {"recipe": None},
    "another length": {"epochs": 2},
    "another teacher": {"asks": tiny_network(5)},
    "other weights": {"seed": 1},
    "another rate": {"settings": replace(SETTINGS, lr=0.01)},
    "another seed": {"settings": replace(SETTINGS, seed=1)},
    "other images": {"batches": tiny_batches()},
    "other labels": {"batches": Batches(BATCHES.source, BATCHES.labels.flip(0), 8, "crop-flip")},
    "another order": {"batches": Batches(BATCHES.source, BATCHES.labels, 8, "crop-flip", 1)},
    "larger batches": {"batches": Batches(BATCHES.source, BATCHES.labels, 12, "crop-flip")},
    "another augmentation": {"batches": Batches(BATCHES.source, BATCHES.labels, 8, "none")},
    "few views": {"batches": Batches(BATCHES.source, BATCHES.labels, 8, "crop-flip", views=2)},
    "dropout": {"dropout": 0.5},
    "other pixel statistics": {"mean": (0.1, 0.2, 0.3)},
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_differs_is_trained_anew(what):
    beginnings = Beginnings()
    take_turns([job(beginnings)[2]], 1)
    _, reporter, steps = job(beginnings, **OTHERS[what])
    take_turns([steps], 1)
    assert [stage for stage, _ in reporter.epochs].count("first") == OTHERS[what].get("epochs", 3)
    _, reporter, steps = job(beginnings)
    take_turns([steps], 1)
    assert [stage for stage, _ in reporter.epochs] == ["second"] * 3


def test_other_numbers_of_images_without_labels_are_trained_anew():
    beginnings, images = Beginnings(), torch.cat([BATCHES.source.images] * 2)
    source = Batches(images, BATCHES.labels, 8, unlabelled=1).source
    for unlabelled in (4, 8):
        batches = Batches(source, BATCHES.labels, 8, "crop-flip", unlabelled=unlabelled)
        _, reporter, steps = job(beginnings, batches=batches)
        take_turns([steps], 1)
        assert len(reporter.epochs) == 6


def test_what_does_not_matter_for_the_first_stage_does_not_differ():
    beginnings = Beginnings()
    take_turns([job(beginnings)[2]], 1)
    same = Batches(BATCHES.source, BATCHES.labels, 8, "crop-flip")
    _, reporter, steps = job(beginnings, settings=replace(SETTINGS, epochs=99), batches=same)
    take_turns([steps], 1)
    assert len(reporter.epochs) == 3


def test_the_same_few_views_do_not_differ():
    """Though each training draws them for itself."""
    beginnings, trained = Beginnings(), []
    for _ in range(2):
        views = Batches(BATCHES.source, BATCHES.labels, 8, "crop-flip", views=2)
        _, reporter, steps = job(beginnings, batches=views)
        take_turns([steps], 1)
        trained.append(len(reporter.epochs))
    assert trained == [6, 3]


def test_one_that_is_stopped_leaves_its_place_to_who_waits():
    beginnings = Beginnings()
    _, _, broken = job(beginnings)
    network, reporter, waiting = job(beginnings)
    for _ in range(4):
        next(broken)
        next(waiting)
    assert reporter.epochs == []
    broken.close()
    take_turns([waiting], 1)
    expected, _, steps = job(None)
    take_turns([steps], 1)
    assert len(reporter.epochs) == 6
    assert same_weights(network, expected)


def test_one_that_breaks_down_leaves_its_place_too():
    beginnings, network = Beginnings(), tiny_network()
    first, second = stages(network)
    bad = replace(first, loss=lambda batch: {"first": network.embed(batch.images).sum() * float("nan")})
    with pytest.raises(LossIsNotFinite):
        take_turns([training([bad, second], network, BATCHES, SETTINGS, beginnings=beginnings)], 1)
    assert beginnings.known == []


def test_after_an_interruption_behind_what_was_taken_over(tmp_path):
    beginnings = Beginnings()
    take_turns([job(beginnings)[2]], 1)
    expected, _, steps = job(None, factor=2.0)
    take_turns([steps], 1)
    network, reporter, steps = job(beginnings, factor=2.0, folder=tmp_path)
    for _ in steps:
        if len(reporter.epochs) == 2:
            break
    steps.close()
    network, reporter, steps = job(Beginnings(), factor=2.0, folder=tmp_path, resume=True)
    take_turns([steps], 1)
    assert reporter.epochs == [("second", 3)]
    assert same_weights(network, expected)
    assert len(MetricsLog(tmp_path / "metrics.jsonl").read()) == 6


def test_what_is_kept_is_a_copy():
    """What the first training does later changes nothing for those that follow."""
    beginnings = Beginnings()
    network, _, steps = job(beginnings, factor=5.0)
    take_turns([steps], 1)
    (beginning,) = beginnings.known
    student, beside = beginning.reached.modules
    assert not any(torch.equal(student[name], value) for name, value in network.named_parameters())
    assert set(beside) == {"weight", "bias"}


def test_alone_nothing_is_kept():
    network = tiny_network()
    one = Beginnings()
    take_turns([training([cross_entropy(network)], network, BATCHES, SETTINGS, beginnings=one)], 1)
    assert one.known == []
