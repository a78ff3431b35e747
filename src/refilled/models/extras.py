"""Import the optional libraries, and say what to do when one is missing or does not fit."""

import importlib
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from types import ModuleType

from refilled.errors import UserError


def import_extra(module: str, extra: str) -> ModuleType:
    """Import ``module`` for models whose names start with ``extra:``.

    timm always imports torchvision, and transformers does where it is installed. Built for another torch,
    torchvision fails with a message about a missing operator; the message here names the pair.

    Args:
        module: name of the module, e.g. ``"timm"``.
        extra: name of the extra that installs it and of the prefix, e.g. ``"timm"``.
    """
    missing = UserError(f"{extra}: models need the {extra} extra: pip install 'refilled[{extra}]'")
    if find_spec(module) is None:
        raise missing
    try:
        if find_spec("torchvision") is not None:
            importlib.import_module("torchvision")
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise missing from error
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        raise UserError(
            f"{extra}: models need a torchvision built for the installed torch; torchvision "
            f"{_version('torchvision')} does not work with torch {_version('torch')}. Install "
            f"the two together with pip, both for CPU or both for one version of CUDA"
        ) from error


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(unknown version)"
