"""What tests of few-shot tasks share."""

import sys
from pathlib import Path

import pytest

from refilled.fewshot import Pool

from .world import make_pool

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def pool() -> Pool:
    return make_pool()


@pytest.fixture
def task_loop(monkeypatch):
    """The loop that the benchmark measures against: the slow, obvious reference here."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import task_loop

    yield task_loop
    sys.modules.pop("task_loop", None)
