"""How a rebuild ended, in words and as data."""

from __future__ import annotations

from typing import Any, Mapping

from ...state.compare import compare


def settle(
    first: Mapping[str, Any], last: Mapping[str, Any], plans: list[Mapping[str, Any]], full: bool
) -> dict[str, Any]:
    """How a rebuild ended: ``{mended: [items], left: [{group, item, ..}], unexpected: [items]}``.

    ``first``, ``last``: the observed states; ``plans``: of all rounds, the last one of what is now. ``unexpected``:
    what a full run changed although the comparison had not found it: the comparison and the roles disagree.
    """
    planned = {(d["group"], d["item"]) for p in plans[:-1] for s in p["steps"] for d in s["items"]}
    now = {(d["group"], d["item"]) for s in plans[-1]["steps"] for d in s["items"]}
    left = [d for s in plans[-1]["steps"] for d in s["items"]]
    declared = {(r["group"], r["item"]) for p in plans for r in p["inventory"]}
    unexpected: list[str] = []
    if full:
        moved = {(d["group"], d["item"]) for d in compare(first, last)["differences"]}
        unexpected = [f"{g}: {i}" for g, i in sorted(moved - planned - declared)]
    return {
        "mended": [f"{g}: {i}" for g, i in sorted(planned - now)],
        "left": left,
        "unexpected": unexpected,
    }


def lines(plan: Mapping[str, Any], *, done: bool) -> list[str]:
    """A plan in words, a line each."""
    out = []
    for step in plan["steps"]:
        role = step["step"] if step["role"] != "plumbline_rebuild" else f"{step['step']} of plumbline_rebuild"
        items = ", ".join(f"{d['group']}: {d['item']}" for d in step["items"][:6])
        more = f" and {len(step['items']) - 6} more" if len(step["items"]) > 6 else ""
        out.append(f"{'still ' if done else ''}to run: {role} ({step['why']}){': ' + items + more if items else ''}")
    if plan["anew"]:
        out.append(f"the build {plan['anew'][:12]} is made anew; the altered one is kept beside it")
    for row in plan["inventory"]:
        out.append(
            f"the inventory declares otherwise: {row['variable']} is {row['now']}, the lock has {row['was']}; "
            "this run takes the lock's, put it into the inventory to keep it"
        )
    out += [f"cannot be changed from here: {c['group']}: {c['item']}: {c['why']}" for c in plan["cannot"]]
    if plan["reboot"]:
        out.append(f"takes effect with a reboot only (-e allow_reboot=true): {', '.join(plan['reboot'])}")
    return out


def came_back(verdict: Mapping[str, Any], host: str) -> list[dict[str, Any]]:
    """For each workload whose baseline was measured on a host: ``{workload, came_back: true|false|null, text}``.

    Null where nothing can be said: no reference yet, or too few boots.
    """
    words = {
        "stable": (True, "the number came back"),
        "improved": (True, "the number came back and is better"),
        "drifted": (False, "the number did not come back"),
        "expired": (None, "the baseline was not measured again"),
        "uncertain": (None, "it cannot be said whether the number came back"),
        "new": (None, "there is no reference yet: this is the first"),
    }
    out = []
    for row in verdict.get("baselines", []):
        if row["host"] != host:
            continue
        known, said = words.get(row["status"], (None, row["status"]))
        figures = [
            f"{row[key]:.1f} tok/s {when}"
            for key, when in (("now_tok_s", "now"), ("reference_tok_s", "is the reference"))
            if row.get(key) is not None
        ]
        reasons = "; ".join(row.get("reasons") or [])
        text = f"{row['workload']}: {said}: {', '.join(figures) or 'nothing was measured'}"
        out.append(
            {"workload": row["workload"], "came_back": known, "text": f"{text} ({reasons})" if reasons else text}
        )
    return out
