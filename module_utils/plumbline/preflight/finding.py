"""One finding of a check, and how it is said."""

from __future__ import annotations

from typing import Any, Dict, List

Finding = Dict[str, Any]
LEVELS = ("ok", "warning", "error", "unknown")


def finding(ok: bool, what: str, found: Any, expected: Any, remedy: str, level: str = "error") -> List[Finding]:
    """A list of the one finding; ``level`` is what it counts as when it does not hold."""
    return [{"level": "ok" if ok else level, "what": what, "found": found, "expected": expected, "remedy": remedy}]


def cannot(what: str, why: Any, remedy: str) -> List[Finding]:
    """What could not be looked at."""
    return [
        {"level": "unknown", "what": what, "found": f"could not be read: {why}", "expected": None, "remedy": remedy}
    ]


def lines(findings: List[Finding], levels: List[str]) -> List[str]:
    """The findings of these levels as text, one line each."""
    out = []
    for f in findings:
        if f["level"] in levels:
            expected = "" if f["expected"] is None else f"; expected: {f['expected']}"
            out.append(f"{f['check']}: {f['what']}; found: {f['found']}{expected}; remedy: {f['remedy']}")
    return out
