"""Networks in run folders: ``student.safetensors`` holds the weights, ``student.json`` all the rest."""

from pathlib import Path
from typing import Any

from refilled.errors import UserError
from refilled.files import read_json, write_json
from refilled.labels import LabelSpace
from refilled.models import native
from refilled.models.hf_source import rebuild_hf
from refilled.models.network import Network, Preprocess
from refilled.models.timm_source import rebuild_timm
from refilled.models.weights import fit_weights, read_weights, write_weights

FORMAT = 1
WEIGHTS = "student.safetensors"
DESCRIPTION = "student.json"


def save_network(network: Network, folder: str | Path) -> None:
    """Write a network into a folder, so that :func:`read_network` finds the same one there.

    Each file appears whole or not at all; the description comes last, so where it is the weights are too.
    """
    folder = Path(folder)
    description = {
        "format": FORMAT,
        "architecture": network.architecture(),
        "classes": list(network.classes),
        "preprocess": network.preprocess.to_json(),
        "dim": network.dim,
    }
    write_weights(network, folder / WEIGHTS)
    write_json(folder / DESCRIPTION, description)


def read_network(folder: str | Path) -> Network:
    """The network that :func:`save_network` wrote into a folder, on the CPU, in evaluation mode."""
    folder = Path(folder)
    path = folder / DESCRIPTION
    if not path.is_file():
        raise UserError(_why_none(folder))
    description = read_json(path)
    if description.get("format") != FORMAT:
        raise UserError(
            f"{path} has format {description.get('format')!r}; this version of refilled reads format {FORMAT}"
        )
    try:
        classes = LabelSpace(description["classes"])
        preprocess = Preprocess.from_json(description["preprocess"])
        network = _rebuild(description["architecture"], classes, preprocess)
    except (KeyError, TypeError) as error:
        raise UserError(f"{path} is incomplete: {type(error).__name__}: {error}") from error
    weights, _ = read_weights(folder / WEIGHTS)
    fit_weights(network, weights, folder / WEIGHTS, f"{network.spec} as {path} describes it")
    return network.eval()


def _rebuild(architecture: dict[str, Any], classes: LabelSpace, preprocess: Preprocess) -> Network:
    spec = architecture["spec"]
    if spec.startswith("timm:"):
        return rebuild_timm(architecture, classes, preprocess)
    if spec.startswith("hf:"):
        return rebuild_hf(architecture, classes, preprocess)
    if not native.is_native(spec):
        raise UserError(f"its architecture is {spec!r}, which this version of refilled does not know")
    return native.build(spec, classes, preprocess, architecture.get("dropout", 0.0))


def _why_none(folder: Path) -> str:
    """Why there is no network to read."""
    if not folder.is_dir():
        return f"there is no run folder {folder}"
    config = folder / "config.json"
    if not config.is_file():
        return f"{folder} is no run folder: it has neither {DESCRIPTION} nor config.json"
    if "model_type" in read_json(config):
        return f"{folder} is no run folder but a model of transformers; write hf:{folder}"
    return f"{folder} has no finished student yet: {DESCRIPTION} appears when its training ends"
