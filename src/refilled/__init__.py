"""Distil any teacher into any student, whatever classes each of them knows.

    result = refilled.distill("runs/teacher", "wrn-16-2", "photos", out="runs/mine")

The losses alone, for a loop of your own, are in :mod:`refilled.objectives`.
"""

from refilled import objectives
from refilled.errors import UserError
from refilled.labels import LabelSpace
from refilled.models import load
from refilled.runs import compare, distill, evaluate
from refilled.version import __version__

__all__ = ["LabelSpace", "UserError", "__version__", "compare", "distill", "evaluate", "load", "objectives"]
