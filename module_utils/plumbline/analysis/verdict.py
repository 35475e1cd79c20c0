"""The verdict document of a run: comparisons, baselines, and what the error rate is held for. Pure, deterministic."""
from __future__ import annotations

import math
from typing import Any, Iterable, Optional

from . import baselines as over_time
from . import breakeven, compare_arms, history, stats
from .comparable import Boot, CompareStates, States, medians, metric_of
from .ledger import Ledger, Records, fold

SCHEMA = "plumbline.verdict/1"
# Above this boot-to-boot sd an inconclusive verdict advises to cut the variance.
NOISY_SD = 0.02


def build(experiment: dict, run: str, plan_entries: list[dict], measurements: list[dict],
          baselines: dict[str, list[dict]], states: Optional[dict[str, dict]] = None,
          compare_states: Optional[CompareStates] = None) -> dict:
    """The document of schema `plumbline.verdict/1` for ``run``.

    ``baselines``: rows of `baselines/<host>.jsonl` by host; ``states``: state documents by digest; ``compare_states``:
    `state.compare`, which ranks the differences of two documents. The same records give the same bytes.
    """
    world = States(states, compare_states)
    hosts = sorted({e["host"] for e in plan_entries if e["run"] == run and e["event"] == "planned"})
    comparisons: list[dict] = []
    status: list[dict] = []
    stops, step_tables, families = [], [], []
    mine = [m for m in measurements if m["run"] == run]
    others = [m for m in measurements if m["run"] != run]
    for host in hosts:
        ledger = fold(plan_entries, host, run)
        records = Records(ledger, mine)
        rows = baselines.get(host, [])
        earlier = history.items([m for m in others if m["host"] == host], plan_entries, rows)
        outcome = compare_arms.outcome(ledger, records, experiment, earlier, world)
        here = [_comparison(ledger, outcome, c) for c in outcome.comparisons]
        comparisons.extend(here)
        families.append({"host": host, "comparisons": outcome.family, "level": _round(outcome.alpha),
                         "method": "e-BH" if outcome.sequential else "BH, one look"})
        step_tables.extend(_steps(ledger, records, host, here, outcome))
        status.extend(_baselines(ledger, records, rows, experiment["margin"], states, compare_states, outcome))
        stops.append({"host": host, "boots": len(records.boots()),
                      "stopped": ledger.finished["kind"] if ledger.finished else None,
                      "reason": ledger.finished["reason"] if ledger.finished else "not finished",
                      "given_up": [{"arm": a, "reason": r} for a, r in sorted(ledger.given_up.items())],
                      "failures": _failures(records)})
    return {"schema": SCHEMA, "run": run, "experiment": experiment["name"], "margin": experiment["margin"],
            "confidence": experiment["confidence"], "family": _family_text(experiment, families), "families": families,
            "comparisons": comparisons, "baselines": status, "steps": step_tables, "hosts": stops}


def _family_text(experiment: dict, families: list[dict]) -> str:
    if not any(f["comparisons"] for f in families):
        return "no comparison"
    if experiment["family"] == "comparison":
        return "each comparison by itself"
    methods = sorted({f["method"] for f in families})
    sizes = sorted({f["comparisons"] for f in families})
    count = " or ".join(map(str, sizes)) + (" comparison" if sizes == [1] else " comparisons")
    return (f"candidates x workloads of one host and run ({count}): of all faster and slower verdicts a share of at "
            f"most {1 - experiment['confidence']:.2g} is expected to be false ({', '.join(methods)})")


def _round(value: Optional[float], digits: int = 6) -> Optional[float]:
    return None if value is None or not math.isfinite(value) else round(value, digits)


def _comparison(ledger: Ledger, outcome: compare_arms.Outcome, c: compare_arms.Comparison) -> dict:
    look, reference, arm = c.look, ledger.arms[ledger.reference], ledger.arms[c.arm]
    spec = ledger.workloads[c.workload]
    used = [r for b in look.candidate_boots for r in b.records]
    refs = [r for b in look.reference_boots for r in b.records]
    own = medians(used, ("accept_length", "step_ms"))
    base = medians(refs, ("accept_length", "step_ms"))
    economics = breakeven.assess(own["accept_length"], own["step_ms"], base["step_ms"], arm["args"])
    theta, hw = look.theta, look.half_width(outcome.alpha)
    ends = [None, None] if theta is None else [_round(_exp(theta - hw)), _round(_exp(theta + hw))]
    length_ratio = breakeven.ratio(own["accept_length"], base["accept_length"])
    time_ratio = breakeven.ratio(own["step_ms"], base["step_ms"])
    excluded = []
    for item in c.excluded:
        if item not in excluded:
            excluded.append(item)
    return {
        "host": ledger.host, "workload": c.workload, "concurrency": int(spec.get("concurrency", 1)),
        "metric": metric_of(spec), "candidate": arm["variant"], "baseline": reference["variant"],
        "candidate_arm": _arm(c.arm, arm), "baseline_arm": _arm(ledger.reference, reference),
        "differs_in": arm["differs_in"], "verdict": c.verdict,
        "ratio": None if theta is None else _round(math.exp(theta)),
        "ci": ends,
        "boots": {"candidate": len(look.candidate_boots), "baseline": len(look.reference_boots)},
        "more_boots": c.more_boots, "accept_length": _round(own["accept_length"]), "step_ms": _round(own["step_ms"]),
        "baseline_step_ms": _round(base["step_ms"]),
        "break_even_accept_length": _round(economics["break_even_accept_length"]),
        "max_accept_length": economics["max_accept_length"], "can_win": economics["can_win"],
        "advice": economics["advice"],
        "change_split": {"accept_length": _round(length_ratio),
                         "step_time": _round(1.0 / time_ratio) if time_ratio else None},
        "candidate_tok_s": _tok_s(look.candidate_boots), "baseline_tok_s": _tok_s(look.reference_boots),
        "evidence": _evidence(look, outcome), "excluded": excluded, "differences": c.differences,
        "reasons": [*_reasons(c, length_ratio, time_ratio, used + refs), *_graphs(used, refs)],
    }


def _exp(x: float) -> float:
    """exp, infinite where the interval has no end; `_round` then gives null."""
    return math.exp(x) if abs(x) < 700 else math.inf


def _arm(name: str, arm: dict) -> dict:
    return {"name": name, "variant": arm["variant"], "nccl_profile": arm["nccl_profile"], "build": arm["build"]}


def _tok_s(boots: list[Boot]) -> Optional[float]:
    """The median over boots of the metric."""
    return _round(math.exp(stats.median([b.y for b in boots]))) if boots else None


def _evidence(look: Any, outcome: compare_arms.Outcome) -> dict:
    seen = look.evidence
    return {"method": "t mixture, valid at every look" if outcome.sequential else "t, one look at the planned end",
            "e_value": _round(look.e) if outcome.sequential else None,
            "p_value": None if outcome.sequential or seen is None else float(f"{look.p:.6g}"),
            "degrees_of_freedom": _round(seen.df, 3) if seen else None,
            "candidate_sd": _round(seen.own_sd) if seen else None,
            "baseline_sd": _round(seen.ref_sd) if seen else None, "history": look.uses_history}


def _reasons(c: compare_arms.Comparison, length: Optional[float], time: Optional[float],
             records: Iterable[dict]) -> list[str]:
    out = list(c.reasons)
    if length and time:
        out.append(f"accept length {length:.2f}x and step time {time:.2f}x of the baseline's")
    flags = sorted({(f["name"]) for r in records for f in r.get("flags", []) if not f.get("invalidates")})
    if flags:
        out.append("flags that do not invalidate: " + ", ".join(flags))
    missing = sorted({str(m) for r in records for m in ((r.get("nccl") or {}).get("missing") or [])})
    if missing:
        out.append("NCCL profile not in force: missing " + ", ".join(missing))
    unverified = sorted({str(u) for r in records for u in ((r.get("state") or {}).get("unverified") or [])})
    if unverified:
        out.append("not verified: " + ", ".join(unverified))
    if c.verdict == "inconclusive" and c.look.theta is not None:
        if c.more_boots is None:
            out.append("more than 100 further boots would be needed: cut the boot-to-boot variance or widen the margin")
        elif c.look.evidence is not None and c.look.evidence.own_sd > NOISY_SD:
            out.append(f"boots of {c.arm} scatter by {c.look.evidence.own_sd:.1%}: cut that variance, it helps more "
                       "than boots do")
    return out


def _graphs(used: list[dict], refs: list[dict]) -> list[str]:
    """Whether the candidate's steps run without the CUDA graph that the baseline's have: often the whole explanation.
    """
    own, base = medians(used, ("graph_share",))["graph_share"], medians(refs, ("graph_share",))["graph_share"]
    if own is None or own > 0.5 or (base is not None and base <= 0.5):
        return []
    args = (used[-1].get("server") or {}).get("argv") or []
    step = "verify step" if any(str(a).startswith("--speculative-algorithm") for a in args) else "decode step"
    with_one = "" if base is None else f", the baseline's with one ({base:.0%})"
    return [f"the {step} runs without CUDA graph ({1 - own:.0%} of the decode lines){with_one}"]


def _steps(ledger: Ledger, records: Records, host: str, comparisons: list[dict],
           outcome: compare_arms.Outcome) -> list[dict]:
    """`2 or 3 steps?` by figures, for each workload with an arm that speculates in steps."""
    out = []
    for workload in ledger.workloads:
        rows = []
        for c in comparisons:
            steps = breakeven.steps_of(ledger.arms[c["candidate_arm"]["name"]]["args"])
            if c["workload"] == workload and steps is not None and c["verdict"] != "not_comparable":
                rows.append({"arm": c["candidate_arm"]["name"], "steps": steps, "verdict": c["verdict"],
                             "ratio": c["ratio"], "accept_length": c["accept_length"],
                             "break_even_accept_length": c["break_even_accept_length"],
                             "max_accept_length": c["max_accept_length"]})
        base = medians([r for b in outcome.boots[workload] if b.role == "baseline" for r in b.records], ("step_ms",))
        drawn = breakeven.curve(_imposed(ledger, records, workload), base["step_ms"])
        if rows or drawn["curve"]:
            found = breakeven.compare_steps(rows)
            for row in found["table"]:
                row["speed_up"] = _round(row["speed_up"])
                if row["marginal"]:
                    row["marginal"] = {k: _round(v) for k, v in row["marginal"].items()}
            found["advice"] = "; ".join(text for text in (found["advice"], drawn["advice"]) if text)
            curve = [{k: _round(v) if isinstance(v, float) else v for k, v in p.items()} for p in drawn["curve"]]
            out.append({"host": host, "workload": workload, **found, "curve": curve})
    return out


def _imposed(ledger: Ledger, records: Records, workload: str) -> list[dict]:
    """The step times of arms whose accept length is imposed: their records are no good for anything else."""
    out = []
    for name, arm in ledger.arms.items():
        if breakeven.imposed(arm["environment"]) is None:
            continue
        mine = [r for r in records.by_id.values() if r["arm"] == name and r["workload"] == workload
                and r["status"] == "ok"
                and all(f["name"] == "simulated_acceptance" for f in r["flags"] if f.get("invalidates"))]
        figures = medians(sorted(mine, key=lambda r: r["id"]), ("accept_length", "step_ms"))
        if figures["accept_length"] and figures["step_ms"]:
            out.append({"arm": name, "steps": breakeven.steps_of(arm["args"]), **figures})
    return out


def _baselines(ledger: Ledger, records: Records, rows: list[dict], margin: float,
               states: Optional[dict], compare: Optional[CompareStates], outcome: compare_arms.Outcome) -> list[dict]:
    reference = ledger.arms[ledger.reference]
    out = []
    for workload in ledger.workloads:
        settled = {b.boot for b in outcome.boots[workload] if b.role == "baseline"}
        found = over_time.of_run(ledger, records, workload, rows, margin, states, compare, settled)
        if found is None:
            continue
        out.append({"host": ledger.host, "workload": workload, "nccl_profile": reference["nccl_profile"],
                    "variant": reference["variant"], "build": reference["build"], "status": found["status"],
                    "reference_tok_s": _round(found["reference_tok_s"]), "now_tok_s": _round(found["now_tok_s"]),
                    "change": _round(found["change"]),
                    "change_split": {k: _round(v) for k, v in found["change_split"].items()},
                    "state_changes": found["state_changes"], "reasons": found["reasons"],
                    "reference": found["reference"], "boots": found["boots"],
                    "change_points": [{k: _round(v) if isinstance(v, float) else v for k, v in p.items()}
                                      for p in found["change_points"]]})
    return out


def _failures(records: Records) -> list[dict]:
    out: dict[str, dict] = {}
    for record in sorted(records.by_id.values(), key=lambda r: r["id"]):
        if record["status"] != "ok":
            failure = record.get("failure") or {}
            out.setdefault(record["boot"], {"boot": record["boot"], "arm": record["arm"],
                                            "class": failure.get("class", "unknown"),
                                            "detail": failure.get("detail", "")})
    return list(out.values())
