"""All that a training needs to go on, in one file without pickles.

The random state is not in it because there is none to keep: shuffling, augmentation and dropout of an
epoch follow from the seed, the stage and the epoch's number alone.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from refilled.errors import UserError
from refilled.models.weights import fit_weights, read_texts, read_weights, write_tensors


@dataclass(frozen=True)
class Position:
    """How far a training has come: this many epochs of stage number ``stage`` are done."""

    stage: int = 0
    epoch: int = 0
    seconds: float = 0.0
    """Training time so far."""


def checkpoint_of(folder: Path) -> Path:
    """The checkpoint file of a run folder."""
    return folder / "checkpoint" / "last.safetensors"


def is_checkpoint_of(path: Path, plan: str) -> bool:
    """Whether a file is a checkpoint of that plan; one that is missing or damaged is not."""
    try:
        return _told(read_texts(path).get("plan")) == _told(plan)
    except UserError:
        return False


def _told(plan: str | None) -> Any:
    """What a plan says; in one of names and values that of a value which is none says nothing, as a plan of
    an earlier version, which did not know the name, does not say it."""
    try:
        return _without_none(json.loads(plan or ""))
    except ValueError:
        return plan


def _without_none(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: _without_none(one) for name, one in value.items() if one is not None}


def save_checkpoint(
    path: Path,
    student: nn.Module,
    optimizer: torch.optim.Optimizer,
    position: Position,
    plan: str,
    beside: nn.Module | None = None,
) -> None:
    """Write student, optimizer and position; the file that was there is replaced in one move.

    Args:
        path: the checkpoint file.
        student: the network in training.
        optimizer: of the current stage.
        position: epochs done.
        plan: what the training is (its stages and settings); it must be the same when it goes on.
        beside: of the current stage, trained beside the student.
    """
    tensors = {f"student.{name}": value for name, value in student.state_dict().items()}
    if beside is not None:
        tensors |= {f"beside.{name}": value for name, value in beside.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{name}"] = value
    write_tensors(path, tensors, {"position": json.dumps(asdict(position)), "plan": plan})


class Checkpoint:
    """A checkpoint read from disk; its methods put it into a student and an optimizer.

    Args:
        path: the file; a damaged one is refused.
        plan: what the training is now; a checkpoint of another plan is refused.
    """

    def __init__(self, path: Path, plan: str):
        try:
            self._tensors, metadata = read_weights(path)
            self.position = Position(**json.loads(metadata["position"]))
        except (UserError, KeyError, ValueError, TypeError) as problem:
            raise UserError(f"{path} is damaged; delete it to start this run from its beginning") from problem
        if _told(metadata.get("plan")) != _told(plan):
            raise UserError(f"{path} belongs to a run with other settings; use another --out folder")
        self.path = path

    def restore_student(self, student: nn.Module) -> None:
        """Put the saved weights into the student."""
        fit_weights(student, self._part("student."), self.path, "the student")

    def restore_beside(self, beside: nn.Module) -> None:
        """Put the saved weights into what the stage trains beside the student."""
        fit_weights(beside, self._part("beside."), self.path, "what is trained beside the student")

    def _part(self, prefix: str) -> dict[str, Tensor]:
        return {
            name.removeprefix(prefix): value
            for name, value in self._tensors.items()
            if name.startswith(prefix)
        }

    def restore_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Put the saved momenta into an optimizer over the same parameters."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for name, value in self._tensors.items():
            if name.startswith("optimizer."):
                _, index, key = name.split(".", 2)
                parameter = parameters[int(index)]
                # In the parameter's own memory layout: fused updates go through both side by side.
                optimizer.state[parameter][key] = torch.empty_like(parameter).copy_(value)
