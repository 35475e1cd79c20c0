"""Baselines over time: `baselines/<host>.jsonl`, the accepted reference, statuses, and where the level changed.

Rows (schema `plumbline.baseline/1`) are of two kinds: `measured`, one for each baseline measurement, and `accepted`,
which names the boots whose median is the reference from then on. Until one is accepted the first state measured is the
reference. Only an acceptance moves it, so that slow drift stays visible.
"""
from __future__ import annotations

import math
from typing import Any, Iterable, Optional

from . import stats, times
from .comparable import MATERIAL, CompareStates, States, metric_of, unusable
from .history import FLOOR_SD, load_digest
from .ledger import Ledger, Records
from .scatter import Scatter, median_variance

SCHEMA = "plumbline.baseline/1"
# Above STABLE_P no change is seen: that is `stable` if one of BLIND_TO would have been, which is outside of the
# interval at SEEN_LEVEL. Under `_alarm_p` a change is one. Between: stable if the interval at NEAR_LEVEL ends within
# twice the margin.
STABLE_P, BLIND_TO, SEEN_LEVEL, NEAR_LEVEL = 0.05, 0.06, 0.005, 0.1
# With few degrees of freedom a step must be found; with ENOUGH_DF it is found anyway, and noisy hosts give fewer
# alarms.
ALARM_P, SURE_ALARM_P, ENOUGH_DF = 0.005, 0.001, 6


def series_key(row: dict) -> tuple:
    """What makes two baselines of a host one series: workload and load, arm, engine."""
    return (row["workload"], row["load"], row["variant"], row["nccl_profile"], row["engine"])


def record(measurement: dict, spec: dict) -> dict:
    """The `measured` row of a baseline measurement; ``spec``: its workload's specification."""
    metric = metric_of(spec)
    why = unusable(measurement, metric)
    metrics = measurement["metrics"]
    state = measurement.get("state") or {}
    return {"schema": SCHEMA, "kind": "measured", "host": measurement["host"], "at": measurement["started_at"],
            "run": measurement["run"], "experiment": measurement["experiment"], "measurement": measurement["id"],
            "boot": measurement["boot"], "engine": measurement["engine"], "variant": measurement["variant"],
            "nccl_profile": measurement["nccl_profile"], "build": measurement["build"],
            "workload": measurement["workload"], "load": load_digest(spec), "metric": metric,
            "tok_s": metrics.get(metric), "accept_length": metrics.get("accept_length"),
            "step_ms": metrics.get("step_ms"), "usable": why is None, "why": why,
            "flags": [f["name"] for f in measurement.get("flags", [])],
            "state": {"digest": state.get("digest"), "groups": state.get("groups") or {},
                      "unverified": state.get("unverified") or []}}


def _in_state_of(rows: list[dict], row: dict, world: States) -> list[dict]:
    """The rows whose state differs from that of ``row`` in nothing that matters."""
    own = row["state"]
    return [r for r in rows if not any(
        d["impact"] in MATERIAL for d in world.rows_of(r["state"].get("digest"), own.get("digest"),
                                                       r["state"].get("groups") or {}, own.get("groups") or {}))]


def accept(rows: list[dict], run: str, now: str, reason: str = "", states: Optional[dict[str, dict]] = None,
           compare_states: Optional[CompareStates] = None) -> list[dict]:
    """The `accepted` rows that make the usable baselines of ``run`` the reference, one for each series."""
    out = []
    world = States(states, compare_states)
    by_series: dict[tuple, list[dict]] = {}
    for row in rows:
        if row["kind"] == "measured" and row["run"] == run and row["usable"]:
            by_series.setdefault(series_key(row), []).append(row)
    for _, mine in sorted(by_series.items(), key=lambda item: str(item[0])):
        newest = mine[-1]
        same = _in_state_of(mine, newest, world)
        keep = ("host", "engine", "variant", "nccl_profile", "build", "workload", "load", "metric", "state")
        out.append({"schema": SCHEMA, "kind": "accepted", "at": now, "run": run, "reason": reason,
                    **{k: newest[k] for k in keep}, "boots": sorted({r["boot"] for r in same}),
                    "tok_s": stats.median(_by_boot(same))})
    return out


def _by_boot(rows: list[dict], name: str = "tok_s") -> list[float]:
    """One value a boot (the mean of its repeats), in order of time."""
    boots: dict[str, list[float]] = {}
    for row in sorted(rows, key=lambda r: (times.seconds(r["at"]), r["measurement"])):
        if row.get(name) is not None:
            boots.setdefault(row["boot"], []).append(float(row[name]))
    return [stats.mean(v) for v in boots.values()]


def reference(rows: Iterable[dict], key: tuple, world: Optional[States] = None) -> Optional[dict]:
    """{kind: accepted|first, tok_s, boots: [rows], state, at} of a series, or None: there is no baseline yet."""
    mine = [r for r in rows if series_key(r) == key]
    measured = [r for r in mine if r["kind"] == "measured" and r["usable"]]
    accepted = [r for r in mine if r["kind"] == "accepted"]
    if accepted:
        last = accepted[-1]
        boots = [r for r in measured if r["boot"] in last["boots"]]
        if boots:
            return {"kind": "accepted", "tok_s": last["tok_s"], "boots": boots, "state": last["state"],
                    "at": last["at"], "build": last["build"]}
    if not measured:
        return None
    first = min(measured, key=lambda r: (times.seconds(r["at"]), r["measurement"]))
    boots = _in_state_of([r for r in measured if r["run"] == first["run"]], first, world or States())
    return {"kind": "first", "tok_s": stats.median(_by_boot(boots)), "boots": boots, "state": first["state"],
            "at": first["at"], "build": first["build"]}


def status(rows: list[dict], key: tuple, run: Optional[str], margin: float, *, state: Optional[dict] = None,
           states: Optional[dict[str, dict]] = None, compare_states: Optional[CompareStates] = None) -> dict:
    """How a series stands against its reference.

    ``rows``: of `baselines/<host>.jsonl` (and the newest run's, whether appended yet or not); ``run``: the run whose
    boots are 'now', or None: nothing has been measured again; ``state``: {digest, groups} as the host now is (default:
    that of the run's newest boot). Returns {status, reference_tok_s, now_tok_s, change, change_split, state_changes,
    reasons, reference, boots: {reference, now}, p, change_points}.
    """
    world = States(states, compare_states)
    earlier = [r for r in rows if r.get("run") != run or r["kind"] == "accepted"] if run else list(rows)
    before = [r for r in earlier if run is None or r["run"] != run]
    ref = reference(before, key, world)
    now_rows = [r for r in rows if run and r["kind"] == "measured" and r["run"] == run and series_key(r) == key]
    usable = [r for r in now_rows if r["usable"]]
    if usable:
        usable = _in_state_of(usable, usable[-1], world)
    out: dict[str, Any] = {
        "status": "new", "reference_tok_s": ref["tok_s"] if ref else None,
        "now_tok_s": stats.median(_by_boot(usable)) if usable else None, "change": None,
        "change_split": {"accept_length": None, "step_time": None}, "state_changes": [], "reasons": [],
        "reference": ref and {"kind": ref["kind"], "at": ref["at"], "state": ref["state"]["digest"]},
        "boots": {"reference": len(_by_boot(ref["boots"])) if ref else 0, "now": len(_by_boot(usable))}, "p": None,
        "change_points": change_points(rows, key)}
    now_state = state or (usable[-1]["state"] if usable else now_rows[-1]["state"] if now_rows else None)
    if ref is None:
        out["reasons"].append("no baseline of this host, workload and arm before this one: it is the first reference")
        return out
    if ref["kind"] == "first":
        out["reasons"].append("the reference is the first state measured: none has been accepted")
    if now_state:
        out["state_changes"] = world.rows_of(ref["state"]["digest"], now_state.get("digest"),
                                             ref["state"].get("groups") or {}, now_state.get("groups") or {})
    material = [r for r in out["state_changes"] if r["impact"] in MATERIAL]
    if not usable:
        if material:
            out["status"] = "expired"
            out["reasons"].append("the state changed since the reference and the baseline was not measured again")
        else:
            out["status"] = "uncertain"
            out["reasons"].append("no usable baseline measurement of now: " + (
                now_rows[-1]["why"] or "" if now_rows else "none was made"))
        return out
    _judge(out, before, key, ref, usable, margin, world)
    _explain(out, material, usable, now_state, margin)
    return out


def of_run(ledger: Ledger, records: Records, workload: str, rows: list[dict], margin: float,
           states: Optional[dict[str, dict]] = None, compare_states: Optional[CompareStates] = None,
           settled: Optional[set[str]] = None) -> Optional[dict]:
    """`status` of the reference arm of a run on one workload, or None before it was measured.

    Only acceptances and baselines of older runs count: what comes later must not change what this run said.
    ``settled``: the boots of the host's newest state; others are not used.
    """
    spec = ledger.workloads[workload]
    now = [record(m, spec) for _, m in sorted(records.by_id.items())
           if m["workload"] == workload and m["arm"] == ledger.reference]
    now.sort(key=lambda r: (times.seconds(r["at"]), r["measurement"]))
    for row in now:
        if settled is not None and row["usable"] and row["boot"] not in settled:
            row.update(usable=False, why="measured in an earlier state of the host")
    if not now:
        return None
    before = [r for r in rows if r["run"] < ledger.run]
    return status(before + now, series_key(now[-1]), ledger.run, margin, states=states, compare_states=compare_states)


def _judge(out: dict, before: list[dict], key: tuple, ref: dict, usable: list[dict], margin: float,
           world: States) -> None:
    """Set status, change, change_split and p: the log change against the scatter of the series' runs."""
    left = [r for r in before if r["kind"] == "measured" and r["usable"] and series_key(r) == key]
    groups: list[list[dict]] = []
    while left:  # one group for each run and state
        groups.append(_in_state_of([r for r in left if r["run"] == left[0]["run"]], left[0], world))
        left = [r for r in left if not any(r is g for g in groups[-1])]
    now = [math.log(v) for v in _by_boot(usable)]
    old = [math.log(v) for v in _by_boot(ref["boots"])]
    scatter = Scatter([*([math.log(v) for v in _by_boot(rows)] for rows in groups), now])
    variance = median_variance(len(old)) + median_variance(len(now))
    change = stats.median(now) - math.log(ref["tok_s"])
    p = scatter.tail(change, variance)
    out["p"], out["change"] = p, math.expm1(change)
    for name, field, sign in (("accept_length", "accept_length", 1), ("step_time", "step_ms", -1)):
        was, is_now = _by_boot(ref["boots"], field), _by_boot(usable, field)
        if was and is_now:
            out["change_split"][name] = math.expm1(sign * math.log(stats.median(is_now) / stats.median(was)))
    wide = 4.0 * math.sqrt(2.0) * scatter.sd
    beyond = math.log1p(margin) if change > 0 else -math.log1p(-margin)
    level = math.log(ref["tok_s"])
    one_side = all(abs(y - level) > beyond and (y > level) == (change > 0) for y in now)
    if p > STABLE_P:
        # Stable is a claim too: a change of BLIND_TO would have been seen.
        seen = abs(change) + scatter.half_width(SEEN_LEVEL, variance) < math.log1p(BLIND_TO)
        out["status"] = "stable" if seen else "uncertain"
        if not seen:
            out["reasons"].append(f"boots scatter by {scatter.sd:.1%}: a change of {BLIND_TO:.0%} could not be told "
                                  "from noise; cut that variance or measure more boots")
    elif len(now) < 2:
        out["status"] = "uncertain"
        out["reasons"].append("one boot alone is never called a change: measure the baseline again")
    elif p < _alarm_p(scatter.df) and one_side and not (len(old) == 2 and abs(old[0] - old[1]) > wide):
        out["status"] = "improved" if change > 0 else "drifted"
    elif abs(change) + scatter.half_width(NEAR_LEVEL, variance) < 2 * beyond:
        out["status"] = "stable"
    else:
        out["status"] = "uncertain"
        out["reasons"].append(f"a change of {math.expm1(change):+.1%} is not yet beyond chance (p = {p:.2g}, "
                              f"boot-to-boot sd {scatter.sd:.1%}): more boots would tell")


def _alarm_p(df: int) -> float:
    return SURE_ALARM_P if df >= ENOUGH_DF else ALARM_P


def _explain(out: dict, material: list[dict], usable: list[dict], state: Optional[dict], margin: float) -> None:
    if out["status"] in ("drifted", "improved"):
        parts = [f"{name.replace('_', ' ')} {value:+.1%}" for name, value in out["change_split"].items()
                 if value is not None]
        out["reasons"].append(f"{out['change']:+.1%} against the reference" + (
            f" ({', '.join(parts)} of speed)" if parts else ""))
        if not out["state_changes"]:
            flags = sorted({f for r in usable for f in r["flags"]})
            out["reasons"].append("same captured state: nothing in it explains the change; flags of the window: " + (
                ", ".join(flags) or "none"))
        elif not material:
            out["reasons"].append("no difference of class invalidates or performance: only "
                                  + ", ".join(sorted({r["impact"] for r in out["state_changes"]})))
    elif material:
        out["reasons"].append(f"{len(material)} differences of state that could matter, without a change beyond "
                              f"{margin * 100:g}%")
    if state and state.get("unverified"):
        out["reasons"].append("not verified: " + ", ".join(map(str, state["unverified"])))


def change_points(rows: Iterable[dict], key: tuple, level: float = 0.001, least: int = 4) -> list[dict]:
    """Where a series' level changed, over all its boots: [{at, boot, before, after, change, p}], oldest first.

    Binary segmentation as in Matteson and James' E-divisive and MongoDB's use of it (Daly et al. 2020), with Student's
    t in place of the permutation test as Apache Otava does (Fleming et al. 2023): deterministic, and fit for short
    series. ``least``: boots on each side; ``level`` is divided by the number of places tried.
    """
    usable = [r for r in rows if r["kind"] == "measured" and r["usable"] and series_key(r) == key]
    boots: dict[str, list[dict]] = {}
    for row in sorted(usable, key=lambda r: (times.seconds(r["at"]), r["measurement"])):
        boots.setdefault(row["boot"], []).append(row)
    names = list(boots)
    ys = [stats.mean([math.log(r["tok_s"]) for r in boots[b]]) for b in names]
    found: list[dict] = []

    def split(low: int, high: int) -> None:
        places = range(low + least, high - least + 1)
        if not places:
            return
        best, best_p = None, 1.0
        for i in places:
            p = _welch(ys[low:i], ys[i:high])
            if p < best_p:
                best, best_p = i, p
        if best is None or best_p * len(places) > level:
            return
        split(low, best)
        before, after = stats.median(ys[low:best]), stats.median(ys[best:high])
        found.append({"at": boots[names[best]][0]["at"], "boot": names[best], "before": math.exp(before),
                      "after": math.exp(after), "change": math.expm1(after - before), "p": best_p * len(places)})
        split(best, high)

    split(0, len(ys))
    return found


def _welch(a: list[float], b: list[float]) -> float:
    ma, mb = stats.mean(a), stats.mean(b)
    rss = math.fsum((x - ma) ** 2 for x in a) + math.fsum((x - mb) ** 2 for x in b)
    df = len(a) + len(b) - 2
    se = math.sqrt(max(rss / df, FLOOR_SD ** 2) * (1 / len(a) + 1 / len(b)))
    return stats.t_two_sided(abs(ma - mb) / se, df)
