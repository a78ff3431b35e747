"""First stages that several trainings have in common: one trains them, the others go on from there.

A sweep over settings of the second stage would train the same first one again for each of them, with the same
seed, images and teacher, and so to the same weights.
"""

import hashlib
import json
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from refilled.data import Batches
from refilled.methods import Stage
from refilled.models import Network
from refilled.training.settings import TrainSettings
from refilled.training.turns import WAITING


@dataclass(frozen=True)
class Reached:
    """Where a training stands at the end of a stage.

    Args:
        modules: the tensors of the student, and of what is trained beside it, if anything is; in the host's
            memory, of which there is more: nobody knows who will still come for them.
        records: of the stage's epochs, as in the metrics.
        seconds: of the training so far, its earlier stages included.
    """

    modules: tuple[dict[str, Tensor], ...]
    records: tuple[dict[str, Any], ...]
    seconds: float

    @classmethod
    def by(cls, modules: Sequence[nn.Module], records: list[dict[str, Any]], seconds: float) -> "Reached":
        """A copy of what these modules hold now."""
        states = (module.state_dict() for module in modules)
        return cls(
            tuple({name: value.to("cpu", copy=True) for name, value in state.items()} for state in states),
            tuple(records),
            seconds,
        )

    def put_into(self, modules: Sequence[nn.Module]) -> None:
        """The same modules of another training then stand there, too."""
        for module, state in zip(modules, self.modules, strict=True):
            module.load_state_dict(state)


@dataclass(eq=False)
class _Beginning:
    """A row of first stages that somebody trains or has trained."""

    key: str
    asks: Sequence[object]
    batches: Batches
    reached: Reached | None = None


class Beginnings:
    """What trainings of one process have reached at the end of stages that others have, too."""

    def __init__(self) -> None:
        self.known: list[_Beginning] = []


class Beginning:
    """What one training has to do with them; a context that ends with it.

    Args:
        beginnings: of it and of others; None: it is by itself.
        student: as it is at its very beginning.
        stages: of the training.
        batches: that it sees.
        settings: of the training.
    """

    def __init__(
        self,
        beginnings: Beginnings | None,
        student: Network,
        stages: Sequence[Stage],
        batches: Batches,
        settings: TrainSettings,
    ):
        self._known = beginnings.known if beginnings is not None and stages[0].recipe is not None else None
        self._stages, self._batches = stages, batches
        self._ours: _Beginning | None = None
        if self._known is not None:
            how = asdict(settings) | {"epochs": None}  # each stage has its own
            made = (student.architecture(), student.preprocess.to_json(), _hash_of(student))
            self._facts = (made, how, (batches.batch_size, batches.asked, batches.seed))

    def __enter__(self) -> "Beginning":
        return self

    def __exit__(self, *problem: object) -> None:
        """A stage that was not finished is left to others."""
        if self._ours is not None and self._known is not None:
            self._known.remove(self._ours)
            self._ours = None

    def reached(self, index: int) -> Generator[object, None, Reached | None]:
        """Where another training stands at the end of stage ``index``; while it is on its way, others have
        their turns. None: there is no other, and who asks trains the stage, and ends with :meth:`keep`."""
        stages = self._stages[: index + 1]
        if self._known is None or any(stage.recipe is None for stage in stages):
            return None
        key = json.dumps([self._facts, [(stage.name, stage.epochs, stage.recipe) for stage in stages]])
        ours = _Beginning(key, [stage.asks for stage in stages], self._batches)
        while (other := next((one for one in self._known if _alike(one, ours)), None)) is not None:
            while other.reached is None and other in self._known:
                yield WAITING
            yield None  # from here on the time is its own again
            if other.reached is not None:
                return other.reached
        self._known.append(ours)
        self._ours = ours
        return None

    def keep(self, modules: Sequence[nn.Module], records: list[dict[str, Any]], seconds: float) -> None:
        """The stage is over, and others may go on from here."""
        if self._ours is not None:
            self._ours.reached = Reached.by(modules, records, seconds)
            self._ours = None


def _alike(one: _Beginning, other: _Beginning) -> bool:
    return (
        one.key == other.key
        and all(a is b for a, b in zip(one.asks, other.asks))
        and one.batches.shows_the_same(other.batches)
        and torch.equal(one.batches.labels, other.batches.labels)
    )


def _hash_of(module: nn.Module) -> str:
    """Of all that a module holds."""
    digest = hashlib.sha256()
    for name, value in module.state_dict().items():
        digest.update(f"{name} {value.dtype} {list(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
