import io
import re

from tiny import cross_entropy, tiny_batches, tiny_network

from refilled.training import TrainSettings, train
from refilled.training.progress import Bar, Lines, describe

RECORD = {"epoch": 2, "lr": 0.05, "images_per_second": 1234.5, "loss/ce": 1.25, "val/accuracy": 0.5}


def trained_with(reporter):
    network = tiny_network()
    settings = TrainSettings(epochs=3, batch_size=8)
    train(
        [cross_entropy(network)],
        network,
        tiny_batches(),
        settings,
        reporter=reporter,
        validate=lambda stage: {"accuracy": 0.5},
    )


def test_the_numbers_of_an_epoch_begin_with_what_counts_most():
    assert describe(RECORD) == "val accuracy 50.00 %  ce 1.2500  1,234 images/s  lr 0.0500"


def test_lines_come_now_and_then_and_at_the_end():
    stream = io.StringIO()
    trained_with(Lines(every=1e9, stream=stream))
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("stage 1/1 classifier: epoch 3/3  val accuracy 50.00 %  cross_entropy ")
    stream = io.StringIO()
    reporter = Lines(every=0, stream=stream)
    reporter.loading(5, 10)
    trained_with(reporter)
    assert stream.getvalue().splitlines()[0] == "reading images: 5/10"
    assert len(stream.getvalue().splitlines()) == 4


def test_a_bar_shows_epochs_at_any_width_and_leaves_its_numbers():
    from rich.console import Console

    for width in (60, 100):
        stream = io.StringIO()
        bar = Bar()
        bar.console = Console(file=stream, force_terminal=True, width=width)
        bar.loading(1, 2)
        bar.loading(2, 2)
        trained_with(bar)
        shown = stream.getvalue()
        assert re.search(r"epoch \d/3", shown)
        assert "stage 1/1 classifier: epoch 3  val accuracy 50.00 %" in shown.replace("\n", " ")
