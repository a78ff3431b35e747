"""What runs have in common is read once, and what is each run's own is not taken from another."""

from refilled.runs.settings import DataSettings
from refilled.runs.shared import Shared


def rows(splits):
    return splits.train.pixels.load(8)[0].flatten(1).tolist()


def test_images_are_opened_anew_where_a_seed_or_a_number_chooses_others():
    shared, few = Shared(), DataSettings(classes="0:3", shots=4, val_fraction=0.0)
    first = shared.splits("digits", few, seed=1)
    assert shared.splits("digits", few, seed=1) is first
    other = shared.splits("digits", few, seed=2)
    assert rows(other) != rows(first)
    more = shared.splits("digits", DataSettings(classes="0:3", shots=5, val_fraction=0.0), seed=2)
    assert len(more.train) == 15
    again = shared.splits("digits", few, seed=1)
    assert rows(again) == rows(first)


def test_all_images_are_the_same_for_every_seed():
    shared, every = Shared(), DataSettings(classes="0:3", val_fraction=0.0)
    assert shared.splits("digits", every, seed=1) is shared.splits("digits", every, seed=2)
