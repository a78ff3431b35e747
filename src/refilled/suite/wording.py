"""Lists in words."""

from collections.abc import Iterable


def listed(values: Iterable[object]) -> str:
    """``a, b and c``: each once, in the order they come in."""
    words = list(dict.fromkeys(map(str, values)))
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
