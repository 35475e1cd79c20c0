"""All comparisons of one run on one host: the looks, settled as a family. What the planner and the verdict share."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Iterable, Optional

from . import decide, history
from .comparable import Boot, States, arm_differences, current_state, series
from .ledger import Ledger, Records
from .weigh import Scale

# An arm whose first so many boots are all unusable is not measured again.
ALL_BAD = 2


@dataclass
class Comparison:
    """One candidate against the reference on one workload."""

    workload: str
    arm: str
    verdict: str
    look: decide.Look
    differences: list[dict] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    excluded: list[dict] = field(default_factory=list)
    more_boots: Optional[int] = None
    reached: bool = False


@dataclass
class Outcome:
    """All comparisons of a host, in the plan's order, and the series they were made of.

    ``excluded``: all that no comparison of a workload uses; ``unusable``: those of it that speak against their arm.
    """

    comparisons: list[Comparison]
    boots: dict[str, list[Boot]]
    scales: dict[str, dict[str, Scale]]
    excluded: dict[str, list[dict]]
    unusable: dict[str, list[dict]]
    family: int
    sequential: bool
    alpha: float
    complete: bool


def outcome(ledger: Ledger, records: Records, experiment: dict, earlier: Iterable[dict], states: States,
            estimates: bool = True) -> Outcome:
    """Every comparison of the ledger's run and host as the records now allow it.

    ``estimates``: whether to work out how many more boots an inconclusive one would take.
    """
    earlier = list(earlier)
    alpha = 1.0 - experiment["confidence"]
    fixed = experiment["blocks"]["min"] == experiment["blocks"]["max"]
    complete = ledger.finished is not None or records.first_open() is None
    boots: dict[str, list[Boot]] = {}
    old: dict[str, list] = {}
    scales: dict[str, dict[str, Scale]] = {}
    excluded: dict[str, list[dict]] = {}
    unusable: dict[str, list[dict]] = {}
    for workload in ledger.workloads:
        found, excluded[workload] = series(ledger, records, workload)
        unusable[workload] = _still_unusable(ledger, records, excluded[workload])
        boots[workload], old[workload] = current_state(found, states)
        scales[workload] = history.scales(ledger, boots[workload], workload, earlier, states)
        for boot, rows in old[workload]:
            names = ", ".join(sorted({f"{r['group']}.{r['item']}" for r in rows})[:3]) or "the reference's state"
            excluded[workload].extend({"measurement": r["id"], "arm": boot.arm,
                                       "why": f"measured in an earlier state of the host ({names} changed since)"}
                                      for r in boot.records)
    pairs = [(w, arm) for w in ledger.workloads for arm in ledger.candidates]
    family = len(pairs) if experiment["family"] == "run" else 1
    shared = {w: decide.references(boots[w], scales[w], experiment["tolerance"], ledger.reference) for w in boots}
    looks = [decide.look(boots[w], arm, scales[w], sequential=not fixed, shared=shared[w]) for w, arm in pairs]
    if experiment["family"] == "run":
        stands = decide.settle(looks, alpha, not fixed, family)
    else:
        stands = [decide.settle([one], alpha, not fixed, 1)[0] for one in looks]
    out = Outcome([], boots, scales, excluded, unusable, family, not fixed, alpha, complete)
    for (workload, arm), one, stand in zip(pairs, looks, stands):
        out.comparisons.append(_comparison(ledger, records, experiment, out, workload, arm, one, stand, states,
                                           estimates))
    return out


def _still_unusable(ledger: Ledger, records: Records, excluded: list[dict]) -> list[dict]:
    """Those of ``excluded`` (of `series`) that were made since the host's state last changed: what could not be used
    before may be usable now. An arm that was given up is not measured again: for it all of them count."""
    fresh = {p.number for p in ledger.since_restart()}
    return [e for e in excluded
            if e["arm"] in ledger.given_up or records.by_id[e["measurement"]]["position"] in fresh]


def _comparison(ledger: Ledger, records: Records, experiment: dict, out: Outcome, workload: str, arm: str,
                one: decide.Look, stands: bool, states: States, estimates: bool) -> Comparison:
    excluded = [e for e in out.excluded[workload] if e["arm"] in (arm, ledger.reference)]
    excluded += [{"measurement": r["id"], "arm": b.arm, "why": why} for b, why in one.dropped for r in b.records]
    result = Comparison(workload, arm, "inconclusive", one, excluded=excluded, reasons=list(one.notes))
    if one.candidate_boots and one.reference_boots:
        result.differences = arm_differences(one.reference_boots[-1], one.candidate_boots[-1],
                                             ledger.arms[arm]["differs_in"], states)
    if result.differences:
        result.verdict, result.reached = "not_comparable", True
        result.reasons.append("the arms differ in more than the experiment varies: " + ", ".join(
            f"{r['group']}.{r['item']}" for r in result.differences))
        return result
    if not one.candidate_boots:
        for side in (arm, ledger.reference):
            bad = [e for e in out.unusable[workload] if e["arm"] == side]
            if bad and not any(b.arm == side for b in out.boots[workload]):
                result.verdict = "not_comparable"
                # What was so twice will be so again: no more boots for it.
                result.reached = len({records.by_id[e["measurement"]]["boot"] for e in bad}) >= ALL_BAD
                result.reasons.append(f"no usable measurement of {side}: {bad[0]['why']}")
                return result
        result.reasons.append(f"no boot of {arm} between two boots of the reference yet")
        result.more_boots = 2
        return result
    # A fixed number of blocks is one look, at the planned end: whoever looks before has no verdict yet.
    early = not out.sequential and not out.complete
    result.verdict = "inconclusive" if early else decide.verdict(one, stands, experiment["margin"])
    result.reached = result.verdict != "inconclusive"
    if early:
        result.reasons.append("interim: a fixed number of blocks is judged once, when all are measured")
    if early:
        result.more_boots = sum(1 for p in ledger.wanted() if p.arm == arm and records.progress(p.number).missing)
    elif not result.reached and estimates:
        result.more_boots = decide.more_boots(one, experiment["margin"], out.alpha, out.family)
        if not early and one.enough and not stands and (one.e >= 1 / out.alpha or one.p <= out.alpha):
            result.reasons.append("its own interval excludes 1, but not strongly enough among "
                                  f"{out.family} comparisons")
    return result
