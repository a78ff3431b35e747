"""Class names: which ones two models share, and the sliding window that makes them overlap.

Nothing else in the project decides whether two classes are the same one.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from refilled.errors import UserError, unknown

_IGNORED = re.compile(r"[\s\-_]+")


def key(name: str) -> str:
    """What of a class name counts when names are compared: not case, spaces, dashes or underscores."""
    return _IGNORED.sub("", name).casefold()


def aliases(name: str) -> list[str]:
    """Keys under which a class can be found: its whole name, then each synonym of a comma list.

    ImageNet's names are such lists: ``"tench, Tinca tinca"`` is found under ``tench`` too.
    """
    parts = name.split(",")
    return list(dict.fromkeys([key(name), *(key(part) for part in parts if len(parts) > 1)]))


@dataclass(frozen=True)
class Overlap:
    """How two label spaces relate; ``here`` is the space that was asked, ``there`` the other one."""

    shared: tuple[str, ...]
    """Names (as written here) of the classes that both know."""
    only_here: tuple[str, ...]
    only_there: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]
    """For each shared class its index here and its index there."""
    ratio: float
    """Share of the other space's classes that are known here, 0 to 1."""

    def __str__(self) -> str:
        total = len(self.shared) + len(self.only_there)
        return f"{len(self.shared)} of {total} classes shared ({self.ratio:.0%})"


class LabelSpace(Sequence[str]):
    """Ordered class names of one model or data set; the position of a name is its label.

    Args:
        names: one name per class; two names that compare equal are refused.
    """

    def __init__(self, names: Iterable[str]):
        self.names: tuple[str, ...] = tuple(str(name) for name in names)
        seen: dict[str, str] = {}
        for name in self.names:
            try:
                name.encode()
            except UnicodeEncodeError:
                raise UserError(f"class name {name!r} is no valid UTF-8; rename it") from None
            if key(name) in seen:
                raise UserError(
                    f"classes {seen[key(name)]!r} and {name!r} are one name (case, spaces, dashes and "
                    f"underscores do not count); rename one of them"
                )
            seen[key(name)] = name
        self._index: dict[str, int] = {}
        for index, name in enumerate(self.names):  # whole names first: a synonym never hides one
            self._index[key(name)] = index
        for index, name in enumerate(self.names):
            for alias in aliases(name)[1:]:
                self._index.setdefault(alias, index)

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self.names[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LabelSpace) and self.names == other.names

    def __hash__(self) -> int:
        return hash(self.names)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.find(name) is not None

    def __repr__(self) -> str:
        shown = ", ".join(self.names[:4]) + (", …" if len(self) > 4 else "")
        return f"LabelSpace({len(self)}: {shown})"

    def find(self, name: str) -> int | None:
        """Label of the class of that name, or None."""
        return next((self._index[alias] for alias in aliases(name) if alias in self._index), None)

    def label(self, name: str) -> int:
        """Label of the class of that name; an unknown name is refused with the nearest known one."""
        found = self.find(name)
        if found is None:
            raise unknown("class", name, self.names)
        return found

    def overlap(self, other: "LabelSpace") -> Overlap:
        """Which classes are in both spaces; ``teacher.overlap(student).ratio`` is the paper's ratio."""
        found = [(self.find(name), there) for there, name in enumerate(other)]
        first: dict[int, int] = {}
        for here, there in found:
            if here is not None:
                first.setdefault(here, there)
        pairs = tuple(sorted(first.items()))
        here_shared, there_shared = {here for here, _ in pairs}, {there for _, there in pairs}
        return Overlap(
            shared=tuple(self.names[here] for here, _ in pairs),
            only_here=tuple(name for i, name in enumerate(self) if i not in here_shared),
            only_there=tuple(name for i, name in enumerate(other) if i not in there_shared),
            pairs=pairs,
            ratio=len(pairs) / len(other) if len(other) else 0.0,
        )

    def windows(self, size: int, overlap: float) -> tuple["LabelSpace", "LabelSpace"]:
        """The paper's sliding window: teacher's and student's classes that overlap by a given ratio.

        The teacher has the first ``size`` classes; the student's window of the same size slides from
        those (``overlap=1``) to the ``size`` classes that follow (``overlap=0``).
        """
        if not 0 <= overlap <= 1:
            raise UserError(f"an overlap is a ratio from 0 to 1, not {overlap}")
        shift = size - round(size * overlap)
        if size < 1 or size + shift > len(self):
            raise UserError(
                f"windows of {size} classes that overlap by {overlap:.0%} need {size + shift} classes; "
                f"there are {len(self)}"
            )
        return LabelSpace(self.names[:size]), LabelSpace(self.names[shift : size + shift])

    def choose(self, spec: str) -> "LabelSpace":
        """Classes that a person wrote down: a range ``20:70`` of this order, or names ``cat,dog``."""
        if re.fullmatch(r"\s*\d*\s*:\s*\d*\s*", spec):
            start, stop = (int(part) if part.strip() else None for part in spec.split(":"))
            if start is not None and stop is not None and start >= stop:
                raise UserError(f"classes {spec} is empty: a range goes upwards, and its end is not in it")
            if max(start or 0, (stop or 1) - 1) >= len(self):
                raise UserError(f"classes {spec} goes beyond the {len(self)} classes there are")
            return LabelSpace(self.names[start:stop])
        names = [name.strip() for name in spec.split(",") if name.strip()]
        if not names:
            raise UserError("no classes are named; give a range such as 20:70, or names such as cat,dog")
        return LabelSpace(self.names[self.label(name)] for name in names)
