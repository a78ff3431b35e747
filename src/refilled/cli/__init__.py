"""The command line: parse, call, print; nothing else. One file for each command."""

import os
import sys
from typing import Any

import tyro

from refilled.cli.bench import BenchCommand
from refilled.cli.demo import DemoCommand
from refilled.cli.distill import DistillCommand
from refilled.cli.evaluate import EvaluateCommand
from refilled.cli.methods import MethodsCommand
from refilled.cli.train import TrainCommand
from refilled.errors import UserError
from refilled.version import __version__

_COMMANDS: dict[str, Any] = {
    "demo": DemoCommand,
    "train": TrainCommand,
    "distill": DistillCommand,
    "evaluate": EvaluateCommand,
    "methods": MethodsCommand,
    "bench": BenchCommand,
}


def main() -> None:
    """Entry point of the ``refilled`` command."""
    command: Any = None
    if sys.argv[1:] == ["--version"]:
        print(f"refilled {__version__}")
        return
    try:
        command = tyro.extras.subcommand_cli_from_dict(
            _COMMANDS,
            prog="refilled",
            description="Distil any teacher into any student, whatever classes each of them knows.",
        )
        command.run()
    except UserError as problem:
        print(f"refilled: {problem}", file=sys.stderr)
        sys.exit(2)
    except OSError as problem:
        if isinstance(problem, BrokenPipeError):
            os._exit(0)  # the reader of a pipe went away: nothing to say
        print(f"refilled: {problem}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        again = (
            f"; go on with the same command and --out {command.out} --resume"
            if hasattr(command, "resume")
            else ""
        )
        print(f"\nrefilled: interrupted{again}", file=sys.stderr)
        sys.exit(130)
