"""Runs: data, models, method and training put together, and the folder they leave behind."""

from refilled.runs.compare import Verdict, compare
from refilled.runs.distill import distill
from refilled.runs.evaluate import Evaluation, evaluate
from refilled.runs.result import Result
from refilled.runs.settings import DataSettings, ImageSettings

__all__ = [
    "DataSettings", "Evaluation", "ImageSettings", "Result", "Verdict", "compare", "distill", "evaluate",
]  # fmt: skip
