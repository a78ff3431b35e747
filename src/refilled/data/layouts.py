"""Which data a person means by a name, and what can be said of them before they are read."""

import difflib
from collections.abc import Callable
from pathlib import Path

from refilled.data.cifar100 import find_cifar100
from refilled.data.cub import find_cub
from refilled.data.dogs import find_dogs
from refilled.data.folder import find_parts, is_left_out
from refilled.data.miniimagenet import find_miniimagenet
from refilled.errors import UserError

_Finder = Callable[[Path], Path | None]
_KNOWN: dict[str, tuple[str, _Finder]] = {
    "cifar100": ("CIFAR-100", find_cifar100),
    "cub": ("CUB-200-2011", find_cub),
    "dogs": ("Stanford Dogs", find_dogs),
    "miniimagenet": ("miniImageNet", find_miniimagenet),
}
"""Data sets that are known by what is in their folder."""
WITH_LISTS = ("cub", "dogs")
"""Those that have official lists, and are also divided otherwise."""
_DIVIDED_BY_US = ("digits", "miniimagenet")
_ACCEPTED = (
    'give "digits", a folder of images (DIR/CLASS/*.jpg), or the folder with the files of '
    "CIFAR-100, CUB-200-2011, Stanford Dogs or miniImageNet"
)


def locate(spec: str | Path) -> tuple[str, Path]:
    """Layout and folder of what a person calls data; digits, which have none, are at a path of that name."""
    if spec == "digits":
        return "digits", Path("digits")
    layout, _, rest = spec.partition(":") if isinstance(spec, str) else ("", "", "")
    layout = layout if layout in {*_KNOWN, "folder"} and rest else ""
    path = Path(rest if layout else spec).expanduser()
    if not path.exists():
        raise UserError(f"no such folder: {path}{_near_miss(str(spec))} ({_ACCEPTED})")
    return layout or _detect(path), path


def are_same(spec: str | Path, other: str | Path) -> bool:
    """Whether two names are of the same data; what is not there is no other's."""
    try:
        (layout, path), (other_layout, other_path) = locate(spec), locate(other)
    except UserError:
        return False
    return (layout, path.resolve()) == (other_layout, other_path.resolve())


def has_lists(spec: str | Path) -> bool:
    """Whether data come with official lists of test images that a ``test_fraction`` can take the place of."""
    return locate(spec)[0] in WITH_LISTS


def has_parts(spec: str | Path) -> bool:
    """Whether data come with test images of their own, which need not be held out."""
    layout, path = locate(spec)
    if layout == "folder":
        return not find_parts(path).keys().isdisjoint(("test", "val"))
    return layout not in _DIVIDED_BY_US


def check_is_there(spec: str | Path) -> None:
    """Refuse what :func:`refilled.data.open_data` would not find, without reading it."""
    layout, path = locate(spec)
    if layout in _KNOWN and _KNOWN[layout][1](path) is None:
        raise UserError(f"{path} holds no {_KNOWN[layout][0]}")


def check_outside(folder: Path, spec: str | Path) -> None:
    """Refuse a folder to write to that lies where each folder is a class of the data."""
    layout, path = locate(spec)
    if layout != "folder":
        return
    inside = folder.resolve()
    for place in list(find_parts(path).values()) or [path]:
        there = place.resolve()
        is_class = there in inside.parents and not is_left_out(inside.relative_to(there).parts[0])
        if is_class or there == inside:
            raise UserError(
                f"{folder} lies in {place} and would be taken for a class of it; choose another --out"
            )


def check_apart(path: Path, data: Path) -> None:
    """Refuse two folders of which one is in the other: they are split in different ways."""
    here, there = path.resolve(), data.resolve()
    if here == there or here in there.parents or there in here.parents:
        raise UserError(
            f"{path} and {data} lie in one another, so that test images could be among those without labels; "
            f"keep the two apart (or give both the same, for its own training images)"
        )


def _detect(path: Path) -> str:
    """Which layout a folder has, by what is in it."""
    found = [layout for layout, (_, find) in _KNOWN.items() if find(path)]
    if len(found) > 1:
        names = " and ".join(_KNOWN[layout][0] for layout in found)
        specs = " or ".join(f"{layout}:{path}" for layout in found)
        raise UserError(f"{path} holds {names}; say which is meant: {specs}")
    return found[0] if found else "folder"


def _near_miss(spec: str) -> str:
    near = difflib.get_close_matches(spec.lower(), ["digits"], cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""
