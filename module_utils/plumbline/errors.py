"""The one exception for bad input, and what its text must say."""
from __future__ import annotations

import difflib
from typing import Iterable, Optional


class PlumblineError(Exception):
    """Bad input or a state of the world that stops the work.

    Every error names what is wrong, where it was given, what was found, what is allowed there and how to mend it.
    ``allowed`` may be empty where there is no finite set to show.
    """

    def __init__(self, what: str, where: str = "", found: object = None, allowed: object = None,
                 remedy: str = "") -> None:
        self.what, self.where, self.found, self.allowed, self.remedy = what, where, found, allowed, remedy
        super().__init__(str(self))

    def __str__(self) -> str:
        parts = [self.what]
        if self.where:
            parts.append(f"where: {self.where}")
        if self.found is not None:
            parts.append(f"found: {self.found}")
        if self.allowed is not None:
            parts.append(f"allowed: {self.allowed}")
        if self.remedy:
            parts.append(f"remedy: {self.remedy}")
        return "; ".join(parts)

    def as_dict(self) -> dict:
        """The parts, for a module's result."""
        return {"what": self.what, "where": self.where, "found": self.found, "allowed": self.allowed,
                "remedy": self.remedy}


def nearest(name: str, allowed: Iterable[str], likeness: float = 0.6) -> Optional[str]:
    """The allowed name that ``name`` was most likely meant to be, or None if none is so much like it (0 to 1)."""
    found = difflib.get_close_matches(name, list(allowed), n=1, cutoff=likeness)
    return found[0] if found else None


def unknown_name(kind: str, name: str, allowed: Iterable[str], where: str) -> PlumblineError:
    """The error for a name that is not in a catalogue, with the nearest right one."""
    names = sorted(allowed)
    guess = nearest(name, names)
    return PlumblineError(
        f"unknown {kind} {name!r}", where, name, ", ".join(names) or "none is defined",
        f"did you mean {guess!r}?" if guess else f"define {name!r} or use one of the allowed names")
