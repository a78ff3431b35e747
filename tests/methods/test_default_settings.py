"""Default settings of the methods beside ReFilled, as in their papers, and numbers that are refused."""

import dataclasses

import pytest

from refilled.errors import UserError
from refilled.methods import get_method

DEFAULTS = {
    "rkd": {"distance_weight": 25.0, "angle_weight": 50.0, "embedding_share": 0.5},
    "sp": {"weight": 3000.0},
    "dkd": {"tau": 4.0, "alpha": 1.0, "beta": 8.0, "warm_up": 20 / 240},
    "dist": {"tau": 4.0, "beta": 2.0, "gamma": 2.0},
    "kd-standardised": {"tau": 2.0, "weight": 9.0, "cross_entropy_weight": 0.1},
    "fitnet": {"weight": 1.0, "hint_share": 0.2, "tau": 3.0, "kd_weight": 4.0},
    "at": {"weight": 1000.0},
    "nst": {"weight": 50.0},
    "vid": {"weight": 1.0},
    "kd-vid": {"tau": 4.0, "weight": 0.9, "vid_weight": 1.0},
    "overhaul": {"weight": 0.001},
    "jacobian": {"weight": 1.0},
    "aml": {
        "loss": "contrastive", "margin": None, "negatives": 5, "with_itself": True, "embedding_share": 0.5,
    },
    "seed": {"tau_student": 0.2, "tau_teacher": 0.01, "embedding_share": 0.5, "queue": 65536},
    "seed-supervised": {"tau_student": 0.2, "tau_teacher": 0.2, "embedding_share": 0.5},
    "crd": {"weight": 0.8, "dim": 128, "negatives": 16384, "tau": 0.07, "memory_momentum": 0.5},
    "sskd": {
        "cross_entropy_weight": 0.1, "kd_weight": 0.9, "turned_weight": 2.7, "similarity_weight": 10.0,
        "tau": 4.0, "turned_tau": 4.0, "similarity_tau": 0.5, "turned_share": 1.0, "similarity_share": 0.75,
        "head_share": 0.2,
    },
    "ban": {"generations": 1, "tau": 1.0, "label_weight": 0.0},
}  # fmt: skip
NO_NUMBERS = ("loss", "with_itself")
NUMBERS = [
    (name, setting) for name, found in DEFAULTS.items() for setting in found if setting not in NO_NUMBERS
]


@pytest.mark.parametrize("name", DEFAULTS)
def test_default_settings(name):
    assert dataclasses.asdict(get_method(name).settings()) == DEFAULTS[name]


@pytest.mark.parametrize(("name", "setting"), NUMBERS)
def test_numbers_without_sense_are_refused_by_name(name, setting):
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(UserError, match=setting):
            get_method(name).settings(**{setting: wrong})
