"""Small runs for the tests of this room."""

import pytest

from refilled import distill

TINY = {"epochs": 2, "batch_size": 8, "progress": False, "device": "cpu"}


@pytest.fixture
def tiny():
    """``tiny(teacher, student, data, …)``: a distillation of two epochs."""

    def run(teacher, student, data, method="refilled", out=None, **settings):
        return distill(teacher, student, data, method, out, **(TINY | settings))

    return run


@pytest.fixture
def teacher(tiny, image_folder):
    """``teacher(["cat", "dog"])``: run folder of a network that was trained on those classes."""

    def make(classes, name="teacher", **settings):
        photos = image_folder(classes, name=f"{name}-photos", sides=settings.pop("sides", 8))
        tiny(None, "wrn-10-1", photos, "student", name, **settings)
        return name

    return make
