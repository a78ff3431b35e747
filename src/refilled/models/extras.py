"""Import the optional libraries, and say what to do when one is missing or does not fit."""

import importlib
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from types import ModuleType

import torch

from refilled.errors import UserError

_SCHEMAS: list[torch.library.Library] = []
"""Those that were missing; they live as long as the library that defined them."""


def import_extra(module: str, extra: str) -> ModuleType:
    """Import ``module`` for models whose names start with ``extra:``.

    timm always imports torchvision, and transformers does where it is installed. Where that fails for good,
    the message names the pair.

    Args:
        module: name of the module, e.g. ``"timm"``.
        extra: name of the extra that installs it and of the prefix, e.g. ``"timm"``.
    """
    missing = UserError(f"{extra}: models need the {extra} extra: pip install 'refilled[{extra}]'")
    if find_spec(module) is None:
        raise missing
    try:
        if find_spec("torchvision") is not None:
            _import_torchvision()
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


def _import_torchvision() -> None:
    """Also beside a torch that its wheel was not built for, such as torch for CPUs alone.

    There its import fails for two operators whose kernels could not be loaded. timm and transformers use
    neither: that they are declared is enough.
    """
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error) or _SCHEMAS:
            raise
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _SCHEMAS.append(library)
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]  # half of it is there
        importlib.import_module("torchvision")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(unknown version)"
