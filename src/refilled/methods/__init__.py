"""Methods by name. Each is a short list of stages in a file of its own."""

from refilled.errors import unknown
from refilled.methods import (
    alone,
    aml,
    at,
    ban,
    crd,
    dist,
    dkd,
    ewc,
    fine_tune,
    fitnet,
    jacobian,
    kd,
    nst,
    overhaul,
    refilled,
    rkd,
    seed,
    sp,
    sskd,
    standardised_kd,
    vid,
)
from refilled.methods.stage import Judge, Method, Stage

_SAME_CLASSES = (kd.METHOD, standardised_kd.METHOD, dkd.METHOD, dist.METHOD, ban.METHOD)
_ANY_CLASSES = (
    fine_tune.METHOD,
    ewc.METHOD,
    rkd.METHOD,
    sp.METHOD,
    aml.METHOD,
    *seed.METHODS,
    crd.METHOD,
    sskd.METHOD,
    *refilled.METHODS,
)
_FEATURE_MAPS = (fitnet.METHOD, at.METHOD, nst.METHOD, *vid.METHODS, overhaul.METHOD, jacobian.METHOD)

METHODS: dict[str, Method] = {
    method.name: method for method in (alone.METHOD, *_SAME_CLASSES, *_ANY_CLASSES, *_FEATURE_MAPS)
}


def get_method(name: str) -> Method:
    """The method of that name; an unknown name is refused with the nearest known one."""
    if name not in METHODS:
        raise unknown("method", str(name), METHODS)
    return METHODS[name]


__all__ = ["METHODS", "Judge", "Method", "Stage", "get_method"]
