"""A safetensors file of a timm model, with what is told beside the weights: class names, preprocessing."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from refilled.errors import UserError
from refilled.files import read_json
from refilled.models.weights import read_weights


@dataclass
class TimmFile:
    """Weights by name, names of the classes, and ``mean``, ``std`` and ``input_size`` where given."""

    path: Path
    weights: dict[str, Tensor]
    names: list[str] | None
    settings: dict[str, Any]


def read_timm_file(path: Path) -> TimmFile:
    """Read weights and what is known about them.

    Class names come from the key ``classes`` of the file's metadata, a JSON list, or from ``classes`` or
    ``label_names`` of a JSON file beside it: ``FILE.json`` for ``FILE.safetensors``, or the ``config.json``
    that timm's repositories have beside ``model.safetensors``. The JSON file may hold ``mean``, ``std`` and
    ``input_size`` too, or all of them inside ``pretrained_cfg``, as timm writes them.
    """
    if path.suffix != ".safetensors":
        raise UserError(
            f"weights are read from .safetensors files, not from {path}: other formats can run "
            f"code when they are opened; convert it with safetensors.torch.save_file"
        )
    weights, metadata = read_weights(path)
    told: dict[str, Any] = {}
    sidecar = _sidecar(path)
    if sidecar is not None:
        told = read_json(sidecar)
        told = {**(told.get("pretrained_cfg") or {}), **told}
    names = told.get("classes") or told.get("label_names")
    if "classes" in metadata:
        try:
            names = json.loads(metadata["classes"])
        except ValueError as error:
            raise UserError(f"{path}: its metadata 'classes' are no JSON list of names: {error}") from error
    if names is not None and not isinstance(names, list):
        where = path if "classes" in metadata else sidecar
        raise UserError(f"{where}: the classes should be a list of names, not a {type(names).__name__}")
    settings = {key: told[key] for key in ("mean", "std", "input_size") if told.get(key) is not None}
    return TimmFile(path, weights, names, settings)


def _sidecar(path: Path) -> Path | None:
    candidates = [path.with_suffix(".json"), path.with_name(path.name + ".json")]
    if path.stem == "model":
        candidates.append(path.with_name("config.json"))
    return next((candidate for candidate in candidates if candidate.is_file()), None)
