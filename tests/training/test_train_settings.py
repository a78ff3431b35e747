import math

import pytest
import torch

from refilled.errors import UserError
from refilled.methods import get_method
from refilled.training import TrainSettings, make_deterministic, pick_device


def test_cosine_falls_from_the_learning_rate_to_zero():
    settings = TrainSettings(lr=0.4)
    assert settings.learning_rate(0) == 0.4
    assert settings.learning_rate(0.5) == pytest.approx(0.2)
    assert settings.learning_rate(1) == pytest.approx(0, abs=1e-12)
    assert settings.learning_rate(0.25) == pytest.approx(0.2 * (1 + math.cos(math.pi / 4)))


def test_multistep_steps_at_its_milestones():
    settings = TrainSettings(lr=1.0, schedule="multistep", milestones=(0.5, 0.75), decay=0.1)
    rates = [settings.learning_rate(at) for at in (0, 0.49, 0.5, 0.74, 0.75, 0.99)]
    assert rates == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"epochs": 0}, "epochs"),
        ({"batch_size": 1}, "batch_size"),
        ({"lr": 0.0}, "lr"),
        ({"lr": float("nan")}, "lr"),
        ({"schedule": "linear"}, "linear"),
        ({"precision": "half"}, "half"),
        ({"validate_every": 0}, "validate_every"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(wrong, named):
    with pytest.raises(UserError, match=named):
        TrainSettings(**wrong)


@pytest.mark.parametrize(("images", "expected"), [(25_000, 256), (2500, 39), (1250, 19), (136, 16), (4, 16)])
def test_few_images_come_in_small_batches(images, expected):
    assert TrainSettings().batch_of(images) == expected
    assert TrainSettings(batch_size=100).batch_of(images) == 100


def test_autocast_is_for_gpus_unless_asked_for():
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert TrainSettings().autocast_dtype(cpu) is None
    assert TrainSettings().autocast_dtype(cuda) is torch.bfloat16
    assert TrainSettings(precision="float32").autocast_dtype(cuda) is None
    assert TrainSettings(precision="bfloat16").autocast_dtype(cpu) is torch.bfloat16


def test_devices_are_checked():
    assert pick_device("cpu").type == "cpu"
    assert pick_device("auto").type in ("cpu", "cuda")
    with pytest.raises(UserError, match="'toaster'"):
        pick_device("toaster")


def test_strict_determinism_can_be_switched_on_and_off():
    make_deterministic(True)
    assert torch.are_deterministic_algorithms_enabled()
    make_deterministic(False)
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("value", ["3", [3], {}])
def test_what_is_no_number_is_refused_by_name(value):
    with pytest.raises(UserError, match=r"^epochs must be a number, not"):
        TrainSettings(epochs=value)


@pytest.mark.parametrize("name", ["epochs", "batch_size", "seed", "validate_every"])
def test_what_is_counted_is_whole(name):
    assert getattr(TrainSettings(**{name: 3}), name) == 3
    for value in (2.5, 3.0):
        with pytest.raises(UserError, match=rf"^{name} must be a whole number, not {value}"):
            TrainSettings(**{name: value})
    with pytest.raises(UserError, match=rf"^{name} must be a finite number"):
        TrainSettings(**{name: math.nan})


def test_no_method_is_refused_with_those_there_are():
    with pytest.raises(UserError, match=r"^unknown method 'None'.*\(known: student"):
        get_method(None)
