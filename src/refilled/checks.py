"""Checks of settings: a value that makes no sense is refused by name, before anything is started."""

import math
from dataclasses import fields
from typing import Any, Literal, SupportsFloat, SupportsIndex, get_args, get_origin, get_type_hints

from refilled.errors import UserError, unknown


def check_choices(settings: Any) -> None:
    """Every field of a settings dataclass that is a Literal holds one of its values."""
    hints = get_type_hints(type(settings))
    for field in fields(settings):
        if get_origin(hints[field.name]) is Literal:
            value, choices = getattr(settings, field.name), get_args(hints[field.name])
            if value not in choices:
                raise unknown(f"value of {field.name}", str(value), choices)


def check_number(
    name: str,
    value: float | None,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    whole: bool = False,
) -> None:
    """A finite number within bounds (``above`` and ``below`` are outside of them), perhaps a whole one; None
    passes."""
    if value is None:
        return
    if isinstance(value, str) or not isinstance(value, SupportsFloat):
        raise UserError(f"{name} must be a number, not {value!r}")
    bounds = {
        f"at least {least}": least is None or value >= least,
        f"greater than {above}": above is None or value > above,
        f"at most {most}": most is None or value <= most,
        f"less than {below}": below is None or value < below,
    }
    if not math.isfinite(value):
        raise UserError(f"{name} must be a finite number, not {value}")
    if whole and not isinstance(value, SupportsIndex):
        raise UserError(f"{name} must be a whole number, not {value}")
    broken = [bound for bound, holds in bounds.items() if not holds]
    if broken:
        raise UserError(f"{name} must be {broken[0]}, not {value}")
