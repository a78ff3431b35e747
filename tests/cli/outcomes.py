"""How the tests of the command line call it, and what they expect of a refusal."""

import os
from pathlib import Path

from refilled import cli

# A process of its own finds the package too, whatever its current folder is.
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(cli.__file__).resolve().parents[2])}
TINY = ("--epochs", "2", "--batch-size", "8", "--device", "cpu")


def refusal(outcome):
    """The one line of a refusal: exit code 2, nothing on standard output, no traceback."""
    code, out, err = outcome
    assert code == 2
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("refilled: ")
    return line.removeprefix("refilled: ")
