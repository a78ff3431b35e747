"""Libraries that only a part of the suite needs; without one, a person is told what to install."""

import importlib
from typing import Any

from refilled.errors import UserError


def library(module: str, extra: str, purpose: str) -> Any:
    """Import a library of an extra.

    Args:
        module: name of the module.
        extra: name of the extra that installs it.
        purpose: what needs it, as the beginning of a sentence.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if (error.name or "").partition(".")[0] != package:
            raise  # the library is there; something that it needs is not
        raise UserError(f"{purpose} needs {package}: pip install 'refilled[{extra}]'") from None
