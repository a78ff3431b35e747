"""Training: settings, one loop, checkpoints, progress."""

from refilled.training.answers import Teachers
from refilled.training.beginnings import Beginnings
from refilled.training.checkpoint import Position
from refilled.training.loop import LossIsNotFinite, Training, train, training
from refilled.training.metrics import MetricsLog
from refilled.training.progress import Reporter, make_reporter
from refilled.training.settings import (
    FRESH_LR,
    TRAINED_LR,
    TrainSettings,
    bfloat16_would_pay,
    make_deterministic,
    pick_device,
)
from refilled.training.step import PlainStep
from refilled.training.turns import Shares, take_turns

__all__ = [
    "FRESH_LR",
    "TRAINED_LR",
    "Beginnings",
    "LossIsNotFinite",
    "MetricsLog",
    "PlainStep",
    "Position",
    "Reporter",
    "Shares",
    "Teachers",
    "TrainSettings",
    "Training",
    "bfloat16_would_pay",
    "make_deterministic",
    "make_reporter",
    "pick_device",
    "take_turns",
    "train",
    "training",
]
