"""Settings of ReFilled that do nothing, because the term that they belong to is switched off."""

from collections.abc import Mapping
from typing import Any

_SWITCHES = {
    ("strength",): ("tau_teacher", "tau_student", "posterior", "weight"),
    ("embedding_share",): (
        "comparison_tau_teacher", "comparison_tau_student", "comparison_scale", "margin", "max_impostors",
        "group",
    ),
    ("head_same", "head_share", "head_unlabelled"): ("head_tau", "head_fade"),
}  # fmt: skip
"""Settings that switch a term off where all of them are 0, and those of that term."""
_FADING = ("strength", "imitation", "imitation_new", "imitation_unlabelled")
_FADING_HEAD = ("head_same", "head_share", "head_unlabelled")
"""Weights of what the teacher says in the second stage: where all are 0 or none, nothing fades."""


def idle_settings(settings: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The names among these settings that do nothing, each with the settings whose 0 is the reason."""
    off = {
        name: switches
        for switches, own in _SWITCHES.items()
        if all(settings.get(switch) == 0 for switch in switches)
        for name in own
    }
    fading = _FADING + (_FADING_HEAD if settings.get("head_fade") is None else ())
    if not any(settings.get(weight) for weight in fading):
        off["fade"] = fading
    return {name: switches for name, switches in off.items() if name in settings}
