"""Networks and batches for the tests of the methods."""

import pytest

from .world import make_batches, make_student, make_teacher


@pytest.fixture
def teacher():
    return make_teacher()


@pytest.fixture
def student():
    return make_student()


@pytest.fixture
def batches():
    return make_batches()
