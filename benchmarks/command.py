"""Benchmarks as commands: a user's mistake is told in one line."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from refilled.errors import UserError


def run(main: Callable[[], None]) -> None:
    """Run it, and end with a line instead of a traceback where what was asked for cannot be done."""
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:
        os._exit(0)  # the reader of a pipe went away: nothing to say
    except UserError as problem:
        sys.exit(f"{Path(sys.argv[0]).stem}: {problem}")
