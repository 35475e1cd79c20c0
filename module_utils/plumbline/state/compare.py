"""What differs between two states, ranked by how much it can matter.

Only identity items make differences; conditions that moved beyond their tolerance are listed beside them. What one
side could not read is neither equal nor different: it is named in ``unverified``.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

from .impact import CLASSES, classify
from .values import absent, is_absent, is_unknown

AS_RECORDED = "as recorded"  # a file of the build that is as its wheel has it
# Items that follow from another: item -> the item that says it.
_FOLLOWS = {
    ("firmware_and_kernel", "kernel.build"): ("firmware_and_kernel", "kernel"),
    ("firmware_and_kernel", "mitigations"): ("firmware_and_kernel", "kernel"),
}
# Conditions: how far a number may move, as a share of the larger one, before it is listed. None: never listed.
_TOLERANCE: Mapping[str, Optional[float]] = {
    "in_force": None,  # follows from the group's identities
    "uptime_s": None,
    "memory_available_mib": 0.25,
    "foreign_load": 1.0,
    "load_average": None,
    "clocks_mhz": None,
    "temperatures_c": None,
    "limits_of_this_session": None,
    "servers": None,
    "checked": None,
    "observed_by_uid": None,
    "path": None,
    "name": None,
    "pyvenv": None,
    "patches": None,
    "overrides": None,
    "lock_digest": None,
    "digest": None,
}


def compare(was: Mapping[str, Any], now: Mapping[str, Any], except_for: Iterable[str] = ()) -> Dict[str, Any]:
    """``{result, differences, conditions, unverified}`` of two state documents.

    ``differences``: ``[{group, item, was, now, impact, remedy}]``, the gravest first. ``result``: ``same``, ``one
    setting differs``, ``n settings differ`` (noise counts only when there is nothing else), or ``unknown: these could
    not be read``.
    ``except_for``: what is meant to differ, as ``group`` or ``group: item``.
    """
    skip = set(except_for)
    differences: List[Dict[str, Any]] = []
    conditions: List[Dict[str, Any]] = []
    unverified: List[str] = []
    for group in _groups(was, now):
        if group in skip:
            continue
        a, b = was["groups"].get(group), now["groups"].get(group)
        if a is None or b is None:
            unverified.append(f"{group}: was not observed in {'the first' if a is None else 'the second'}")
            continue
        found, unread = _items(group, a["identity"], b["identity"])
        differences += [d for d in found if f"{group}: {d['item']}" not in skip]
        unverified += unread
        conditions += _conditions(group, a["condition"], b["condition"])
    differences = _without_followers(differences)
    order = list(_groups(was, now))
    differences.sort(key=lambda d: (order.index(d["group"]), d["item"]))
    return {
        "result": result(differences, unverified),
        "differences": ranked(differences),
        "conditions": conditions,
        "unverified": unverified,
    }


def ranked(differences: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """The gravest first, otherwise as they stand."""
    return sorted(differences, key=lambda d: CLASSES.index(d["impact"]))


def result(differences: List[Dict[str, Any]], unverified: List[str]) -> str:
    """The comparison in words."""
    n = sum(d["impact"] != "noise" for d in differences) or len(differences)
    if n == 1:
        return "one setting differs"
    if n:
        return f"{n} settings differ"
    return "unknown: these could not be read" if unverified else "same"


def _groups(was: Mapping[str, Any], now: Mapping[str, Any]) -> List[str]:
    return list(dict.fromkeys([*was["groups"], *now["groups"]]))


def _items(group: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Tuple[List[Dict[str, Any]], List[str]]:
    found: List[Dict[str, Any]] = []
    unread: List[str] = []
    missing: Any = AS_RECORDED if group == "files" else absent()
    for item in sorted({*a, *b}):
        was, now = a.get(item, missing), b.get(item, missing)
        if is_unknown(was) or is_unknown(now):
            sides = [f"{side}: {v['unknown']}" for side, v in (("first", was), ("second", now)) if is_unknown(v)]
            unread.append(f"{group}: {item} ({'; '.join(sides)})")
            continue
        if was == now:
            continue
        impact, remedy = classify(group, item, was, now)
        shown = reduced(was, now)
        found.append(
            {"group": group, "item": item, "was": shown[0], "now": shown[1], "impact": impact, "remedy": remedy}
        )
    return found, unread


def reduced(was: Any, now: Any) -> Tuple[Any, Any]:
    """The two values without what is alike in both: keys of mappings, words of lists."""
    if isinstance(was, dict) and isinstance(now, dict) and not is_absent(was) and not is_absent(now):
        keys = [k for k in dict.fromkeys([*was, *now]) if was.get(k) != now.get(k)]
        if "directives" in keys:
            keys.remove("sha256")
        pairs = {k: reduced(was.get(k), now.get(k)) for k in keys}
        return {k: p[0] for k, p in pairs.items()}, {k: p[1] for k, p in pairs.items()}
    if isinstance(was, list) and isinstance(now, list) and all(isinstance(x, str) for x in [*was, *now]):
        gone, came = Counter(was) - Counter(now), Counter(now) - Counter(was)
        if gone or came:
            return list(gone.elements()), list(came.elements())
    return was, now


def _without_followers(differences: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Leave out what follows from another difference: the kernel's build text from its release, a profile's name from
    its variables."""
    have = {(d["group"], d["item"]) for d in differences}
    out: List[Dict[str, Any]] = []
    for d in differences:
        cause = _FOLLOWS.get((d["group"], d["item"]))
        if d["group"] == "nccl" and d["item"] == "profile":
            if any(g == "nccl" and i.startswith("variable.") for g, i in have):
                continue
            d = {**d, "impact": "noise"}  # another name for the same variables
        elif cause in have:
            continue
        out.append(d)
    return out


def _conditions(group: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> List[Dict[str, Any]]:
    out: List[Dict[str, Any]] = []
    if not a or not b:
        return []  # a lock knows no conditions
    for item in sorted({*a, *b}):
        was, now = a.get(item, absent()), b.get(item, absent())
        if was == now or is_unknown(was) or is_unknown(now):
            continue
        tolerance = _TOLERANCE.get(item, 0.05)
        if tolerance is None or item.startswith(("free_mib.", "gpu.", "service.")) or item.endswith(": path"):
            continue
        if isinstance(was, (int, float)) and isinstance(now, (int, float)) and not isinstance(was, bool):
            if item == "foreign_load" and max(was, now) < 0.1:
                continue
            if abs(was - now) <= tolerance * max(abs(was), abs(now)):
                continue
        shown = reduced(was, now)
        out.append({"group": group, "item": item, "was": shown[0], "now": shown[1]})
    return out
