"""Bisect: which of the differences between two states carries the change of speed. Pure functions.

The differences that a boot can be given are *units*: the build, each edited file, each NCCL variable, each server
argument and variable of the environment. A test is an experiment of its own: the good state against the good state
with some units of the bad one, decided as every comparison is. The search is delta debugging (Zeller and Hildebrandt,
"Simplifying and isolating failure-inducing input", IEEE TSE 28(2), 2002, algorithm ddmin), so that a change that needs
two differences at once is found, too.

Entries of `bisect.jsonl` (append-only): `begun`, `test`, `answer`, `ended`. `next_step` replays them: the same answers
lead to the same next test, so a search that was killed goes on where it was. Each entry names its search by a
fingerprint of what was asked.
"""
from __future__ import annotations

import math
from typing import Any, Callable, Iterable, Optional, Sequence

SCHEMA = "plumbline.bisect/1"
CARRIES, FREE, UNRESOLVED = "carries", "does not carry", "unresolved"
Subset = tuple[str, ...]


class NeedsTestError(Exception):
    """The search cannot go on before this subset is tested."""

    def __init__(self, subset: Subset) -> None:
        super().__init__(", ".join(subset))
        self.subset = subset


def ddmin(units: Sequence[str], carries: Callable[[Subset], bool]) -> Subset:
    """A smallest set of ``units`` that carries the change: without any one of them it does not (1-minimal).

    ``carries(units)`` must hold; units that are likely causes come first, since halves are tried in order.
    """
    left, parts = tuple(units), 2
    while len(left) > 1:
        chunks = _split(left, parts)
        chunk = next((c for c in chunks if carries(c)), None)
        if chunk is not None:
            left, parts = chunk, 2
            continue
        rests = [tuple(u for u in left if u not in c) for c in chunks] if parts > 2 else []
        rest = next((r for r in rests if carries(r)), None)
        if rest is not None:
            left, parts = rest, max(parts - 1, 2)
        elif parts >= len(left):
            break
        else:
            parts = min(len(left), 2 * parts)
    return left


def _split(units: Subset, parts: int) -> list[Subset]:
    ends = [len(units) * i // parts for i in range(parts + 1)]
    return [units[a:b] for a, b in zip(ends, ends[1:]) if b > a]


def margin_for(change: float) -> float:
    """The margin of a test: half of the whole change (``change``: its ratio), as a share.

    A test then asks which of the two levels it is nearer to, which takes far fewer boots than a figure would.
    """
    return min(0.5, abs(math.expm1(math.log(change) / 2.0)))


def read_answer(comparison: dict, change: Optional[float]) -> str:
    """What a test's comparison says. ``change``: ratio of the whole change, None in the first test, which measures it.

    `carries`: as the whole change, beyond half of it and certain; `does not carry`: certainly within half of it, or a
    change in the other direction; else `unresolved`.
    """
    verdict = comparison["verdict"]
    if verdict in ("faster", "slower"):
        if change is None:
            return CARRIES
        return CARRIES if (verdict == "faster") == (change > 1.0) else FREE
    return FREE if verdict == "same" else UNRESOLVED


def fold(entries: Iterable[dict], fingerprint: str) -> dict:
    """{begun, tests: [{test, answer or None}], ended} of the newest search of that fingerprint in ``entries``.

    Searches over the same two states (of other hosts, variants, workloads, margins) share the file and may run side by
    side. An entry without a fingerprint, as they once were written, belongs to the search that had begun last.
    """
    out: dict[str, Any] = {"begun": None, "tests": [], "ended": None}
    newest: Optional[str] = None
    for entry in entries:
        if entry["event"] == "begun":
            newest = entry["fingerprint"]
        if entry.get("fingerprint", newest) != fingerprint:
            continue
        if entry["event"] == "begun":
            out = {"begun": entry, "tests": [], "ended": None}
        elif entry["event"] == "test":
            out["tests"].append({"test": entry, "answer": None})
        elif entry["event"] == "answer":
            next(t for t in out["tests"] if t["test"]["number"] == entry["number"])["answer"] = entry
        elif entry["event"] == "ended":
            out["ended"] = entry
    return out


def next_step(book: dict, margin: float) -> dict:
    """What follows from the answers so far (``book``: as `fold` gives it, each test answered).

    Returns {"test": [unit names], "margin", "reason"} or {"end": {outcome, found, whole, share, text}}.
    ``margin``: of the first test, which asks whether the change is there at all.
    """
    units = tuple(u["name"] for u in book["begun"]["units"])
    if not units:
        return {"end": _end("nothing to change", [], book, "the two states differ in nothing that a boot can be given")}
    answers = {tuple(t["test"]["units"]): t["answer"] for t in book["tests"]}
    whole = answers.get(units)
    if whole is None:
        return {"test": list(units), "margin": margin, "reason": "is the change there with all that can be changed?"}
    if whole["result"] != CARRIES:
        known = "cannot be changed here" if book["begun"]["cannot_change"] else "the two states do not show"
        text = (f"with all that can be changed the good state is {_ratio(whole)} of itself: "
                + ("the change is not among these differences; it lies in what " + known if whole["result"] == FREE
                   else f"not decided ({whole['detail'] or whole['verdict']})"))
        return {"end": _end("not reproduced" if whole["result"] == FREE else UNRESOLVED, [], book, text)}
    change = float(whole["ratio"])

    def carries(subset: Subset) -> bool:
        if subset not in answers:
            raise NeedsTestError(subset)
        return bool(answers[subset]["result"] == CARRIES)

    try:
        found = ddmin(units, carries)
    except NeedsTestError as need:
        return {"test": list(need.subset), "margin": margin_for(change),
                "reason": f"do {', '.join(need.subset)} alone carry it?" if len(need.subset) > 1
                else f"does {need.subset[0]} alone carry it?"}
    return {"end": _found(found, units, answers, book)}


def _found(found: Subset, units: Subset, answers: dict, book: dict) -> dict:
    whole, own = answers[units], answers[found]
    open_ones = [list(s) for s, a in answers.items() if a["result"] == UNRESOLVED]
    text = f"{', '.join(found)}: {_ratio(own)} of the good state, of {_ratio(whole)} with all differences"
    if len(found) > 1:
        text += "; these together: no smaller set that was tested carries it" if found != units else \
            "; all of them together: no smaller set that was tested carries it"
    if open_ones:
        text += "; not decided: " + "; ".join(", ".join(s) for s in open_ones)
    return _end("found", list(found), book, text, ratio=own["ratio"], share=_share(own["ratio"], whole["ratio"]))


def _end(outcome: str, found: list[str], book: dict, text: str, ratio: Optional[float] = None,
         share: Optional[float] = None) -> dict:
    units = [u["name"] for u in book["begun"]["units"]]
    whole = next((t["answer"] for t in book["tests"] if t["test"]["units"] == units), None)
    cannot = book["begun"]["cannot_change"]
    if cannot:
        text += "; cannot be changed here: " + ", ".join(f"{c['group']}.{c['item']}" for c in cannot[:8]) + (
            f" and {len(cannot) - 8} more" if len(cannot) > 8 else "")
    return {"outcome": outcome, "found": found, "ratio": ratio, "whole": whole and whole["ratio"], "share": share,
            "innocent": sorted({u for t in book["tests"] if t["answer"] and t["answer"]["result"] == FREE
                                for u in t["test"]["units"]} - set(found)), "text": text}


def _share(part: Optional[float], whole: Optional[float]) -> Optional[float]:
    """Which part of the whole change a ratio is, both on the log scale."""
    return round(math.log(part) / math.log(whole), 4) if part and whole and whole != 1.0 else None


def _ratio(answer: dict) -> str:
    if answer.get("ratio") is None:
        return "an unknown share"
    low, high = answer.get("ci") or (None, None)
    return f"{answer['ratio']:.3f}x" + (f" [{low:.3f}, {high:.3f}]" if low is not None and high is not None else "")
