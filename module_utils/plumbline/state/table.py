"""Comparisons as text for a terminal."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping

from .impact import CLASSES

_WIDTH = 46
_PER_CLASS = 25


def short(value: Any, width: int = _WIDTH) -> str:
    """A value on one line: digests cut to 12 characters, absent and missing in words."""
    if value is None:
        return "-"
    if isinstance(value, dict):
        if value.get("absent") is True:
            return "not there"
        if len(value) == 1 and "version" in value:
            return short(value["version"], width)
        text = " ".join(f"{k}={short(v, 20)}" for k, v in value.items())
    elif isinstance(value, list):
        text = " ".join(short(v, width) for v in value) or "-"
    elif isinstance(value, str):
        text = value[:12] if len(value) == 64 and all(c in "0123456789abcdef" for c in value) else value
    else:
        text = json.dumps(value)
    return text if len(text) <= width else text[: width - 3] + "..."


def render(comparison: Mapping[str, Any], was: str, now: str) -> str:
    """The table of a comparison: what differs, ranked; then conditions and what could not be read."""
    lines: List[str] = [f"{was} -> {now}: {comparison['result']}"]
    rows: List[List[str]] = []
    folded: Dict[str, int] = {}
    for impact in CLASSES:
        of_class = [d for d in comparison["differences"] if d["impact"] == impact]
        shown = of_class if impact != "noise" or not rows else []
        folded[impact] = len(of_class) - len(shown[:_PER_CLASS])
        rows += [
            [d["impact"], d["group"], _tail(d["item"]), short(d["was"]), short(d["now"])] for d in shown[:_PER_CLASS]
        ]
    if rows:
        head = ["impact", "group", "item", "was", "now"]
        widths = [max(len(r[i]) for r in [head, *rows]) for i in range(len(head))]
        lines += ["", "  ".join(h.ljust(w) for h, w in zip(head, widths)).rstrip()]
        lines += ["  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip() for row in rows]
    for impact, n in folded.items():
        if n:
            what = "of class noise, folded" if impact == "noise" else f"more of class {impact}"
            lines.append(f"... {n} {what}; all are in the JSON")
    remedies = dict.fromkeys(d["remedy"] for d in comparison["differences"] if d["impact"] != "noise")
    if remedies:
        lines += ["", "What mends it:"] + [f"  - {r}" for r in remedies]
    if comparison.get("conditions"):
        lines += ["", "Conditions that moved (no part of the state):"]
        lines += [
            f"  - {c['group']}: {c['item']}: {short(c['was'])} -> {short(c['now'])}" for c in comparison["conditions"]
        ]
    if comparison.get("unverified"):
        lines += ["", "Could not be compared:"] + [f"  - {u}" for u in comparison["unverified"]]
    return "\n".join(lines)


def _tail(item: str, width: int = 60) -> str:
    return item if len(item) <= width else "..." + item[-(width - 3) :]
