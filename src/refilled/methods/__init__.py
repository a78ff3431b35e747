"""Methods by name. Each is a short list of stages in a file of its own."""

from refilled.errors import unknown
from refilled.methods import alone, dist, dkd, kd, refilled, rkd, sp, standardised_kd
from refilled.methods.stage import Judge, Method, Stage

_SAME_CLASSES = (kd.METHOD, standardised_kd.METHOD, dkd.METHOD, dist.METHOD)
_ANY_CLASSES = (rkd.METHOD, sp.METHOD, *refilled.METHODS)

METHODS: dict[str, Method] = {method.name: method for method in (alone.METHOD, *_SAME_CLASSES, *_ANY_CLASSES)}


def get_method(name: str) -> Method:
    """The method of that name; an unknown name is refused with the nearest known one."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


__all__ = ["METHODS", "Judge", "Method", "Stage", "get_method"]
