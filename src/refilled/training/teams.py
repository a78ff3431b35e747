"""Trainings that take turns and make their steps together, as far as they are of one kind."""

from collections.abc import Callable, Generator, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from refilled.data import Plan
from refilled.models import Network
from refilled.models.together import can_join
from refilled.training.compiled import compiled_together
from refilled.training.epochs import Epochs, Schedule
from refilled.training.team import Forward, Member, Team

LARGEST = 4
"""Members of a team: more are divided. One team's kernels fill the GPU while another's losses, which are many
small kernels, are computed."""
_QUIET_TURNS = 2
"""Turns of each member without a new one before a team is made: all others have had theirs in between."""
Kind = tuple[Any, ...]


class Teams:
    """Brings trainings of one kind together: at the beginning of an epoch each waits for the others.

    Args:
        takes: whether a student can go together with others of its kind, in that type of autocast.
        forward: makes what is asked of several students at once, from the name of what is asked.
        largest: members of a team.
    """

    def __init__(
        self,
        takes: Callable[[Network, torch.dtype | None], bool] = can_join,
        forward: Callable[[str], Forward] = compiled_together,
        largest: int = LARGEST,
    ):
        self.takes, self._forward, self._largest = takes, forward, largest
        self.problem: str | None = None
        """Why a team could not be made; from then on there are none."""
        self._members: dict[Kind, list[Member]] = {}
        self._waiting: dict[Kind, dict[Member, int]] = {}
        """With the number of turns since the last one came."""
        self._teams: dict[Kind, list[Team]] = {}

    def enter(self, member: Member) -> None:
        """One more that the others of its kind are to wait for."""
        self._members.setdefault(member.kind, []).append(member)
        self._count_anew(member.kind)

    def leave(self, member: Member) -> None:
        """One that they are not to wait for any more."""
        kind, members = member.kind, self._members.get(member.kind, [])
        if member not in members:
            return
        members.remove(member)
        self._waiting.get(kind, {}).pop(member, None)
        self._count_anew(kind)
        for team in self._teams.get(kind, []):
            if member in team.members:
                team.leave(member)
        if not members:
            self._teams.pop(kind, None)

    def gather(self, member: Member) -> Generator[None, None, Team | None]:
        """Wait for the others of its kind; ends with the team for an epoch, None if there is none."""
        kind = member.kind
        waiting = self._waiting.setdefault(kind, {})
        waiting[member] = 0
        self._count_anew(kind)
        while member in waiting and self.problem is None:
            waiting[member] += 1
            self._begin_if_all_are_there(kind)
            if member in waiting and self.problem is None:
                yield
        if self.problem is not None:
            return None
        return next(team for team in self._teams[kind] if member in team.members)

    def _begin_if_all_are_there(self, kind: Kind) -> None:
        members, waiting = self._members[kind], self._waiting[kind]
        if set(waiting) != set(members):
            return
        teams, parts = self._teams.get(kind, []), _divided(members, self._largest)
        if [team.members for team in teams] != parts:
            if min(waiting.values()) <= _QUIET_TURNS:
                return
            teams = [team for team in teams if team.members in parts]
            self._teams[kind] = teams  # the memory of the others is free now
            try:
                for part in parts:
                    if part not in [team.members for team in teams]:
                        teams.append(Team(part, self._forward(part[0].given.asked)))
            except Exception as problem:  # whatever a step does that cannot be compiled or captured
                if isinstance(problem, torch.cuda.OutOfMemoryError):
                    raise
                self.problem = f"{type(problem).__name__}: {str(problem).partition(chr(10))[0][:120]}"
            teams.sort(key=lambda team: parts.index(team.members))
        waiting.clear()

    def _count_anew(self, kind: Kind) -> None:
        waiting = self._waiting.get(kind, {})
        for member in waiting:
            waiting[member] = 0


def _divided(members: list[Member], largest: int) -> list[list[Member]]:
    """Into as few parts as there can be, of nearly the same size."""
    parts = -(-len(members) // largest)
    ends = [len(members) * number // parts for number in range(parts + 1)]
    return [members[first:last] for first, last in pairwise(ends)]


class JoinedEpochs:
    """The epochs of a member of teams.

    Args:
        member: what it brings.
        teams: where it finds the others.
        alone: makes its epochs without others, should there be no team; called at most once.
    """

    def __init__(self, member: Member, teams: Teams, alone: Callable[[], Epochs]):
        self.member, self.step, self._teams, self._make_alone = member, member.step, teams, alone
        self._alone: Epochs | None = None
        teams.enter(member)

    def run(self, plan: Plan, schedule: Schedule) -> Iterator[Tensor | None]:
        """Do the planned steps; yields each one's loss terms [terms], and None while others are not ready."""
        if self._alone is None:
            member = self.member
            member.drawn.put(plan, schedule)
            if (team := (yield from self._teams.gather(member))) is not None:
                for number in range(len(plan)):
                    made = team.steps
                    team.come(member)
                    while team.steps == made:
                        yield None
                    team.wait()
                    yield member.drawn.losses[number]
                return
            self._alone = self._make_alone()
        yield from self._alone.run(plan, schedule)

    def close(self) -> None:
        """It comes no more."""
        self._teams.leave(self.member)
