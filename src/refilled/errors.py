"""What a user sees when something they gave does not fit."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake that the person can mend: the message says what is wrong, where, and what to do.

    The command line prints the message on one line and exits with code 2; no traceback.
    """


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """An error for a name that does not exist, with the nearest one that does."""
    known = list(known)
    by_lower = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), list(by_lower), n=1, cutoff=0.4)
    guess = f"; did you mean {by_lower[near[0]]!r}?" if near else ""
    listing = ", ".join(known[:40]) + (", …" if len(known) > 40 else "")
    return UserError(f"unknown {kind} {name!r}{guess} (known: {listing})")
