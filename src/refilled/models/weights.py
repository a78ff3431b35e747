"""Weights on disk, in safetensors files: read them, write them, and fit them into a module."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from refilled.errors import UserError
from refilled.files import write_atomically


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A file of tensors; one that is missing or damaged is refused."""
    if not path.is_file():
        raise UserError(f"there is no file of weights {path}")
    try:
        with safe_open(path, "pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged or no safetensors file ({error}); get it again") from error


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors by name, on the CPU, and the texts that were stored with them."""
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118


def read_texts(path: Path) -> dict[str, str]:
    """The texts that were stored with tensors; those are not read."""
    with _opened(path) as file:
        return dict(file.metadata() or {})


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors by name, and texts with them; the file appears whole or not at all."""
    # A tensor of its own each: safetensors refuses two names for one memory.
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_atomically(path, lambda temporary: save_file(own, temporary, metadata))


def write_weights(module: nn.Module, path: Path) -> None:
    """Write a module's parameters and buffers."""
    write_tensors(path, module.state_dict(), {"format": "pt"})


def fit_weights(
    module: nn.Module, weights: dict[str, Tensor], path: Path, what: str, may_lack: tuple[str, ...] = ()
) -> None:
    """Copy weights into a module; every tensor must find its place, or the first one that does not is named.

    Args:
        module: what receives them.
        weights: tensors by name.
        path: where they came from, for messages.
        what: name of the architecture, for messages.
        may_lack: names of tensors that the file may lack.
    """
    wanted = module.state_dict()
    advice = f"the weights are of another architecture than {what}"
    for name, tensor in wanted.items():
        if name not in weights:
            # A counter that PyTorch itself fills in for old files; normalisation does not depend on it.
            if name in may_lack or name.endswith("num_batches_tracked"):
                continue
            raise UserError(f"{path} has no tensor {name!r} of shape {tuple(tensor.shape)}: {advice}")
        if weights[name].shape != tensor.shape:
            raise UserError(
                f"tensor {name!r} has shape {tuple(weights[name].shape)} in {path}, but "
                f"{tuple(tensor.shape)} in {what}: {advice}"
            )
    extra = next((name for name in weights if name not in wanted), None)
    if extra is not None:
        raise UserError(
            f"{path} has a tensor {extra!r} of shape {tuple(weights[extra].shape)} that {what} "
            f"does not have: {advice}"
        )
    with torch.no_grad():
        module.load_state_dict(weights, strict=False)
