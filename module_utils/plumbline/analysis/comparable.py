"""Which measurements may be compared: flags, states, and the boots of one host and workload as a series.

A measurement with an invalidating flag is left out and said so. Boots of another state than the newest are left out.
Two arms may differ in what the experiment varies and in nothing else of class `invalidates` or `performance`.
"""
from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Optional

from . import stats, times
from .ledger import Ledger, Position, Records

CompareStates = Callable[[dict, dict], list[dict]]
MATERIAL = ("invalidates", "performance")
# The state's groups that each axis may change. `nccl` follows the build, which brings its own NCCL.
_GROUPS_OF_AXIS = {"variant": ("engine_args", "models"), "args": ("engine_args",), "draft": ("engine_args", "models"),
                   "nccl_profile": ("nccl",), "build": ("build", "files", "nccl")}


@dataclass
class Boot:
    """One boot's result for one workload. ``y``: natural log of the metric; ``at_h``: hours, Unix."""

    position: int
    block: int
    arm: str
    role: str
    boot: str
    at_h: float
    y: float
    records: list[dict]
    state: Optional[str]
    remeasure_of: Optional[int] = None
    groups: dict[str, str] = field(default_factory=dict)


def metric_of(spec: dict) -> str:
    """The metric of a comparison: decode rate of a single stream, else output rate while all streams were in flight."""
    return "decode_tok_s" if int(spec.get("concurrency", 1)) == 1 else "output_tok_s"


def unusable(record: dict, metric: str) -> Optional[str]:
    """Why a record cannot be used, or None."""
    if record["status"] != "ok":
        failure = record.get("failure") or {}
        return f"failed: {failure.get('class', 'unknown')}: {failure.get('detail', '')}".rstrip(": ")
    bad = [f for f in record.get("flags", []) if f.get("invalidates")]
    if bad:
        return "; ".join(f"{f['name']}: {f['detail']}" for f in bad)
    value = record["metrics"].get(metric)
    if not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        return f"no usable {metric}: {value}"
    return None


def series(ledger: Ledger, records: Records, workload: str) -> tuple[list[Boot], list[dict]]:
    """(boots with a usable measurement of ``workload``, in the plan's order; excluded [{measurement, arm, why}])."""
    metric = metric_of(ledger.workloads[workload])
    boots, excluded = [], []
    repeats = sorted({repeat for _, repeat in ledger.pairs})
    for position in ledger.positions():
        progress = records.progress(position.number)
        good = []
        for repeat in repeats:
            record = progress.done.get((workload, repeat))
            if record is None:
                continue
            why = unusable(record, metric)
            if why:
                excluded.append({"measurement": record["id"], "arm": position.arm, "why": why})
            else:
                good.append(record)
        excluded.extend({"measurement": r["id"], "arm": position.arm, "why": unusable(r, metric)}
                        for r in progress.failed if r["workload"] == workload)
        if good:
            boots.append(_boot(position, good, metric))
    return boots, excluded


def _boot(position: Position, records: list[dict], metric: str) -> Boot:
    state = records[-1].get("state") or {}
    return Boot(position.number, position.block, position.arm, position.role, records[-1]["boot"],
                min(times.seconds(r["started_at"]) for r in records) / 3600.0,
                stats.mean([math.log(r["metrics"][metric]) for r in records]), records,
                state.get("digest"), position.remeasure_of, state.get("groups") or {})


class States:
    """Material differences between states, remembered. Without documents every difference of a digest counts."""

    def __init__(self, documents: Optional[dict[str, dict]] = None, compare: Optional[CompareStates] = None) -> None:
        self.documents, self.compare = documents or {}, compare
        self._cache: dict[tuple[str, str], list[dict]] = {}

    def rows(self, was: Boot, now: Boot) -> list[dict]:
        """Every difference, as `state.compare` ranks them: [{group, item, was, now, impact, remedy}]."""
        return self.rows_of(was.state, now.state, was.groups, now.groups)

    def rows_of(self, was: Optional[str], now: Optional[str], was_groups: dict, now_groups: dict) -> list[dict]:
        """The same from digests and group digests."""
        if was is None or now is None or was == now:
            return []
        key = (was, now)
        if key not in self._cache:
            if self.compare and was in self.documents and now in self.documents:
                self._cache[key] = self.compare(self.documents[was], self.documents[now])
            else:
                names = sorted(set(was_groups) | set(now_groups))
                self._cache[key] = [{"group": n, "item": "digest", "was": was_groups.get(n), "now": now_groups.get(n),
                                     "impact": "performance", "remedy": "the state documents would say what differs"}
                                    for n in names if was_groups.get(n) != now_groups.get(n)] or \
                                   [{"group": "state", "item": "digest", "was": was, "now": now,
                                     "impact": "performance", "remedy": "the state documents would say what differs"}]
        return self._cache[key]

    def changed(self, was: Boot, now: Boot) -> list[dict]:
        """The differences that matter between two boots of one arm."""
        return [r for r in self.rows(was, now) if r["impact"] in MATERIAL]


def current_state(boots: Iterable[Boot], states: States) -> tuple[list[Boot], list[tuple[Boot, list[dict]]]]:
    """(boots of the newest state, older boots with what has changed since).

    ``boots`` are in the plan's order, which no clock that is set back can change. Each arm's boots are compared with
    that arm's newest boot; boots before a change of the reference's state are old for every arm.
    """
    boots = list(boots)
    newest: dict[str, Boot] = {}
    for boot in boots:
        newest[boot.arm] = boot
    old: list[tuple[Boot, list[dict]]] = []
    border, border_rows = -1, []  # type: int, list[dict]
    for i, boot in enumerate(boots):
        rows = states.changed(boot, newest[boot.arm])
        if rows:
            border, border_rows = i, rows
    kept = []
    for i, boot in enumerate(boots):
        if i <= border:
            old.append((boot, states.changed(boot, newest[boot.arm]) or border_rows))
        else:
            kept.append(boot)
    return kept, old


def arm_differences(reference: Boot, candidate: Boot, differs_in: list[str], states: States) -> list[dict]:
    """What differs between two arms' states beyond what the experiment varies, of a class that matters."""
    allowed: set[str] = set()
    for axis in differs_in:
        allowed.update(_GROUPS_OF_AXIS.get(axis.split(".")[0], ()))
    return [r for r in states.rows(reference, candidate) if r["impact"] in MATERIAL and r["group"] not in allowed]


def between(a: dict, b: dict, states: States) -> dict:
    """Whether two measurement records of the same host and workload may be compared as they are, of any two runs.

    Returns {comparable, differences: as `state.compare` ranks them, reasons}.
    """
    reasons = [f"different {name}: {a.get(name)} and {b.get(name)}" for name in ("host", "workload", "engine")
               if a.get(name) != b.get(name)]
    was, now = a.get("state") or {}, b.get("state") or {}
    rows = states.rows_of(was.get("digest"), now.get("digest"), was.get("groups") or {}, now.get("groups") or {})
    if was.get("digest") is None or now.get("digest") is None:
        reasons.append("the state of one of them was not observed")
    for record in (a, b):
        reasons.extend(f"{record['id']}: {f['name']}: {f['detail']}" for f in record.get("flags", [])
                       if f.get("invalidates"))
    material = [r for r in rows if r["impact"] in MATERIAL]
    reasons.extend(f"{r['group']}.{r['item']} differs: {r['was']} and {r['now']} ({r['impact']})" for r in material)
    return {"comparable": not reasons, "differences": rows, "reasons": reasons}


def medians(records: Iterable[dict], names: Iterable[str]) -> dict[str, Optional[float]]:
    """The median over records of each metric, None where no record has it."""
    out: dict[str, Optional[float]] = {}
    rows = list(records)
    for name in names:
        values: list[Any] = [r["metrics"].get(name) for r in rows]
        numbers = [float(v) for v in values if isinstance(v, (int, float)) and math.isfinite(v)]
        out[name] = stats.median(numbers) if numbers else None
    return out
