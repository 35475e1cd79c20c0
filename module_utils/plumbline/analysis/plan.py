"""Planning: what runs in which order and why, and which boot comes next. Pure functions over the plan's entries.

The plan is written before the first boot and amended with reasons, append-only. `next_boot` is asked before each boot;
it looks at the records alone, so that a run that was killed goes on where it was.
"""
from __future__ import annotations

import hashlib
import math
from typing import Any, Iterable, Optional

from ..errors import PlumblineError
from ..ids import ulid
from ..server.boots import INTERRUPTED
from . import baselines, compare_arms, decide, history, times
from .comparable import CompareStates, States, current_state, series
from .ledger import Ledger, Position, Records, apply, draw_blocks, fold, measurement_id

SCHEMA = "plumbline.plan/1"
# A host whose state changes more often than this within a run is not worth more boots.
MOST_RESTARTS = 3


def first(experiment: dict, host: str, arms: list[dict], workloads: dict[str, dict], run: str, seed: int, now: str,
          boot_s: Optional[float] = None) -> dict:
    """The `planned` entry of a run on a host.

    ``arms``: as `experiment.arms` made them (with `argv`, where rendered), the reference first; ``workloads``: the
    catalogue's entry by name; ``now``: RFC 3339; ``boot_s``: seconds that a boot is expected to take, if known.
    Raises PlumblineError if the budget does not hold one whole block.
    """
    reference = next(a["name"] for a in arms if a["role"] == "baseline")
    candidates = [a["name"] for a in arms if a["role"] == "candidate"]
    blocks = draw_blocks(reference, candidates, experiment["blocks"]["max"], f"{seed}|{run}|{host}")
    least = len(blocks[0])
    budget = experiment["budget"]
    if budget.get("boots") is not None and budget["boots"] < least:
        raise PlumblineError("the budget does not hold one block", f"experiment {experiment['name']}, key budget.boots",
                             budget["boots"], f"at least {least}: the reference, {len(candidates)} candidates and the "
                             "reference again", "raise budget.boots or take candidates out")
    fixed = experiment["blocks"]["min"] == experiment["blocks"]["max"]
    planned_boots = 1 + max(p["position"] for block in blocks for p in block)
    if budget.get("boots") is not None:
        planned_boots = min(planned_boots, budget["boots"])
    reason = (f"{len(blocks)} blocks, each measured" if fixed else
              f"from {experiment['blocks']['min']} to {experiment['blocks']['max']} blocks, until each verdict is "
              "reached") + (": the reference, the candidates in random order, the reference again"
                            if candidates else " of the reference alone")
    return {"schema": SCHEMA, "at": now, "run": run, "experiment": experiment["name"], "host": host, "event": "planned",
            "seed": seed, "reason": reason, "workloads": {w: dict(spec) for w, spec in workloads.items()},
            "arms": {a["name"]: {k: v for k, v in a.items() if k != "name"} for a in arms}, "blocks": blocks,
            "least_blocks": experiment["blocks"]["min"], "repeats": experiment["repeats"],
            "retries": experiment["retries"], "warm_up": experiment["warm_up"], "margin": experiment["margin"],
            "confidence": experiment["confidence"], "budget": dict(budget),
            "estimate_s": None if boot_s is None else round(boot_s * planned_boots, 1)}


def next_boot(plan_entries: list[dict], measurements: list[dict], earlier: list[dict], experiment: dict, host: str,
              run: str, now: str, *, states: Optional[dict[str, dict]] = None,
              compare_states: Optional[CompareStates] = None) -> dict:
    """The next boot of ``run`` on ``host``, or why there is none.

    ``plan_entries``: all of plan.jsonl; ``measurements``: all of measurements.jsonl; ``earlier``: rows of
    `baselines/<host>.jsonl` (other experiments' history); ``states``: state documents by digest.
    Returns {"boot": ..., "amend": entry or None} or {"stop": reason, "kind": verdict|budget|blocks|failed,
    "amend": entry or None}. The amendment is to be appended before the boot starts.
    """
    planner = _Planner(fold(plan_entries, host, run), measurements, plan_entries, earlier, experiment, now,
                       States(states, compare_states))
    return planner.next()


class _Planner:
    def __init__(self, ledger: Ledger, measurements: list[dict], plan_entries: list[dict], earlier: list[dict],
                 experiment: dict, now: str, states: States) -> None:
        self.ledger, self.experiment, self.now, self.states = ledger, experiment, now, states
        self.measurements = measurements
        self.records = Records(ledger, measurements)
        self.plan_entries, self.baselines = plan_entries, earlier
        self.changes: list[dict] = []
        self.fixed = experiment["blocks"]["min"] == experiment["blocks"]["max"]
        self._earlier: Optional[list[dict]] = None

    def next(self) -> dict:
        if self.ledger.finished is not None:
            return {"stop": self.ledger.finished["reason"], "kind": self.ledger.finished["kind"], "amend": None}
        # Each round either returns or amends the ledger, and amendments are finitely many.
        while True:
            if self._change_of_state():
                if len(self.ledger.void_blocks) > MOST_RESTARTS:
                    return self._stop("the host's state keeps changing: " + self.changes[-1]["reason"], "failed")
                continue
            position = self.records.first_open()
            if position is None or self._at_border(position):
                if not self.fixed and self._remeasure():
                    continue
                stop = self._stop_at_border(position)
                if stop:
                    return stop
                position = self.records.first_open()
            if position is None:
                return self._stop("all planned blocks are measured", "blocks")
            if self._failed_too_often(position):
                if position.role == "baseline":
                    why = self.records.progress(position.number).failures[-1].get("failure") or {}
                    return self._stop(f"the reference {position.arm} failed {self._tries(position)} times: "
                                      f"{why.get('class', 'unknown')}", "failed")
                self._give_up(position)
                continue
            return {"boot": self._boot(position), "amend": self._entry("amended")}

    # where the run is

    def _at_border(self, position: Position) -> bool:
        """Whether ``position`` is the first of its block that is to run, with blocks measured before it."""
        before = [p for p in self.ledger.positions() if self.records.progress(p.number).started]
        if not before or self.records.progress(position.number).started:
            return False
        block = self.ledger.blocks[position.block - 1]
        fresh = [p for p in block if p.block == position.block and self.ledger.active(p.arm)]
        return bool(fresh) and fresh[0] is position and position.remeasure_of is None and position.block > 1

    # what the records say

    def _earlier_items(self) -> list[dict]:
        if self._earlier is None:
            self._earlier = history.items([m for m in self.measurements if m["run"] != self.ledger.run],
                                          self.plan_entries, self.baselines)
        return self._earlier

    def _change_of_state(self) -> bool:
        """Start new blocks if the newest boot's state differs from that arm's boots before, in what matters."""
        now = self.ledger.since_restart()
        numbers = {p.number for p in now}
        done = [p for p in now if self.records.progress(p.number).done]
        if len(done) < 2:
            return False
        for workload in self.ledger.workloads:
            boots = [b for b in series(self.ledger, self.records, workload)[0] if b.position in numbers]
            latest = {b.arm: b for b in boots}
            for boot in boots:
                last = latest[boot.arm]
                rows = self.states.changed(boot, last) if boot is not last else []
                if rows:
                    self._restart(done, last, rows)
                    return True
        return False

    def _restart(self, done: list[Position], last: Any, rows: list[dict]) -> None:
        ledger = self.ledger
        current = done[-1].block
        opening = last.position if last.role == "baseline" and done[-1].number == last.position else None
        names = ", ".join(f"{r['group']}.{r['item']}" for r in rows[:3])
        for arm in list(ledger.dropped):
            if arm not in ledger.given_up:
                self._change({"change": "reactivate", "arm": arm, "reason": "its verdict was of the host's earlier "
                              f"state ({names} changed)"})
        candidates = [c for c in ledger.candidates if ledger.active(c)]
        # Boots of the old state say nothing about the new one: the whole number of blocks again.
        raw = draw_blocks(ledger.reference, candidates, self.experiment["blocks"]["max"],
                          f"{ledger.planned['seed']}|{ledger.run}|{ledger.host}|restart {len(ledger.changes)}",
                          ledger.next_number(), current + 1, opening)
        self._change({"change": "restart", "block": current, "blocks": raw,
                      "done": [p.number for p in ledger.blocks[current - 1] if self.records.progress(p.number).started],
                      "reason": f"the host's state changed ({names}): new blocks, nothing is mixed"})

    def _remeasure(self) -> bool:
        """Measure the newest reference again if it differs from the one before by more than the tolerance."""
        done = [p for p in self.ledger.positions() if p.role == "baseline" and self.records.progress(p.number).done]
        if len(done) < 2 or not self.ledger.candidates:
            return False
        right = done[-1]
        if right.remeasure_of is not None or any(p.remeasure_of == right.number for p in self.ledger.positions()):
            return False
        if self.ledger.blocks[right.block - 1][-1] is not right:
            return False
        budget = self.ledger.planned["budget"].get("boots")
        if budget is not None and len(self.records.boots()) >= budget:
            return False
        for workload in self.ledger.workloads:
            boots, _ = current_state(series(self.ledger, self.records, workload)[0], self.states)
            refs = [b for b in boots if b.role == "baseline"]
            if len(refs) < 2 or refs[-1].position != right.number:
                continue
            known = history.scales(self.ledger, boots, workload, self._earlier_items(), self.states)
            tau = decide.tolerance(known.get(self.ledger.reference), self.experiment["tolerance"])
            gap = refs[-1].y - refs[-2].y
            if abs(gap) > tau:
                self._change({"change": "remeasure", "position": self.ledger.next_number(), "of": right.number,
                              "reason": f"{workload}: the references around block {right.block} differ by "
                                        f"{abs(gap):.1%}, tolerance {tau:.1%}"})
                return True
        return False

    def _stop_at_border(self, position: Optional[Position]) -> Optional[dict]:
        """Drop candidates whose verdicts are reached; stop if none is left, or if the next block is over budget."""
        finished_blocks = len(self.ledger.blocks) if position is None else position.block - 1
        enough = self.ledger.blocks_since_restart(finished_blocks) >= self.experiment["blocks"]["min"]
        if not self.fixed and self.ledger.candidates:
            outcome = compare_arms.outcome(self.ledger, self.records, self.experiment, self._earlier_items(),
                                           self.states, estimates=False)
            if enough:
                self._drop(outcome, len(self.ledger.blocks) - finished_blocks)
            if not any(self.ledger.active(c) for c in self.ledger.candidates):
                if self.ledger.hopeless:
                    return self._stop("no verdict that is not reached yet is worth the blocks that are left: "
                                      + "; ".join(f"{c}: {self.ledger.dropped[c]}" for c in self.ledger.candidates
                                                  if c in self.ledger.hopeless), "budget")
                if any(c in self.ledger.dropped for c in self.ledger.candidates):
                    return self._stop("each candidate's verdict is reached", "verdict")
                return self._stop("no candidate is left: each was given up", "failed")
        elif self.ledger.candidates and not any(self.ledger.active(c) for c in self.ledger.candidates):
            return self._stop("no candidate is left: each was given up", "failed")
        elif not self.ledger.candidates and not self.fixed and enough:
            settled = self._baselines_settled()
            if settled:
                return self._stop(settled, "verdict")
        if position is None:
            return self._stop("all planned blocks are measured", "blocks")
        return self._over_budget(position)

    def _baselines_settled(self) -> str:
        """What each baseline is, once none of them needs another boot; "" before."""
        found = {w: baselines.of_run(self.ledger, self.records, w, self.baselines, self.experiment["margin"],
                                     self.states.documents, self.states.compare) for w in self.ledger.workloads}
        if any(f is None or f["status"] in ("uncertain", "expired", "new") for f in found.values()):
            return ""
        return "each baseline is settled (" + ", ".join(f"{w}: {f['status']}" for w, f in found.items() if f) + ")"

    def _drop(self, outcome: compare_arms.Outcome, left: int) -> None:
        # By e-BH each comparison that stands makes it easier for the next.
        family = outcome.family / (1 + sum(c.verdict in ("faster", "slower") for c in outcome.comparisons))
        for arm in self.ledger.candidates:
            mine = [c for c in outcome.comparisons if c.arm == arm]
            reached = all(c.reached for c in mine)
            if reached and self.ledger.active(arm):
                text = ", ".join(f"{c.workload}: {c.verdict}" for c in mine)
                self._change({"change": "drop", "arm": arm, "reason": f"verdict reached ({text})"})
            elif not reached and arm in self.ledger.dropped and arm not in self.ledger.hopeless:
                self._change({"change": "reactivate", "arm": arm,
                              "reason": "with the newest boots its verdict no longer stands"})
            elif not reached and self.ledger.active(arm) and all(
                    decide.hopeless(c.look, self.experiment["margin"], outcome.alpha, family, left)
                    for c in mine if not c.reached):
                text = ", ".join(f"{c.workload}: {_estimate(c.look)}" for c in mine if not c.reached)
                self._change({"change": "drop", "arm": arm, "hopeless": True,
                              "reason": f"inconclusive, and {decide.PATIENCE} times the {left} boots that are left "
                                        f"would not decide it ({text})"})

    def _over_budget(self, position: Position) -> Optional[dict]:
        budget = self.ledger.planned["budget"]
        block = [p for p in self.ledger.blocks[position.block - 1]
                 if self.ledger.active(p.arm) and p.block == position.block and self.records.progress(p.number).missing]
        spent = len(self.records.boots())
        if budget.get("boots") is not None and spent + len(block) > budget["boots"]:
            return self._stop(f"budget: {spent} of {budget['boots']} boots are spent and the next block takes "
                              f"{len(block)}", "budget")
        if budget.get("minutes") is not None and spent:
            used = self.records.spent_s()
            need = used / spent * len(block)
            if used + need > budget["minutes"] * 60.0:
                return self._stop(f"budget: {used / 60:.1f} of {budget['minutes']} minutes are spent and the next "
                                  f"block takes about {need / 60:.1f}", "budget")
        return None

    # failures

    def _tries(self, position: Position) -> int:
        """Failures of the arm's own: a boot that was broken off from outside is made again."""
        failures = self.records.progress(position.number).failures
        return sum((f.get("failure") or {}).get("class") not in INTERRUPTED for f in failures)

    def _failed_too_often(self, position: Position) -> bool:
        return self._tries(position) > self.ledger.planned["retries"]

    def _give_up(self, position: Position) -> None:
        why = self.records.progress(position.number).failures[-1].get("failure") or {}
        self._change({"change": "give_up", "arm": position.arm,
                      "reason": f"{position.arm} failed {self._tries(position)} times: {why.get('class', 'unknown')}: "
                                f"{why.get('detail', '')}"})

    # what is returned

    def _change(self, change: dict) -> None:
        apply(self.ledger, change)
        self.changes.append(change)

    def _entry(self, event: str, **more: Any) -> Optional[dict]:
        if event == "amended" and not self.changes:
            return None
        reason = more.pop("reason", None) or "; ".join(c["reason"] for c in self.changes)
        return {"schema": SCHEMA, "at": self.now, "run": self.ledger.run, "experiment": self.experiment["name"],
                "host": self.ledger.host, "event": event, "reason": reason, "changes": self.changes, **more}

    def _stop(self, reason: str, kind: str) -> dict:
        return {"stop": reason, "kind": kind, "amend": self._entry("finished", reason=reason, kind=kind)}

    def _boot(self, position: Position) -> dict:
        ledger, planned = self.ledger, self.ledger.planned
        arm = ledger.arms[position.arm]
        progress = self.records.progress(position.number)
        order = _workload_order(list(ledger.workloads), position.block, f"{planned['seed']}|{ledger.run}|{ledger.host}")
        pairs = sorted(progress.missing, key=lambda pair: (pair[1], order.index(pair[0])))
        measured = any(self.records.progress(p.number).done for p in ledger.positions())
        key = f"{ledger.run}|{ledger.host}|{position.number}|{self.now}|{progress.attempt}|{len(progress.done)}"
        return {
            "id": ulid(times.seconds(self.now), hashlib.sha256(key.encode()).digest()[:10]), "run": ledger.run,
            "experiment": self.experiment["name"], "host": ledger.host, "block": position.block,
            "position": position.number, "role": position.role, "warm_up": bool(planned["warm_up"]) and not measured,
            "reason": self._reason(position), "attempt": progress.attempt,
            "arm": {"name": position.arm, "variant": arm["variant"], "nccl_profile": arm["nccl_profile"],
                    "build": arm["build"]},
            "args": arm["args"], "argv": arm.get("argv"), "draft": arm.get("draft"),
            "environment": arm["environment"],
            "workloads": [{"id": measurement_id(planned, position.number, progress.attempt, w, r), "name": w,
                           "repeat": r, "spec": ledger.workloads[w]} for w, r in pairs],
        }

    def _reason(self, position: Position) -> str:
        progress = self.records.progress(position.number)
        if progress.failures:
            failure = progress.failures[-1].get("failure") or {}
            return f"again after a failure ({failure.get('class', 'unknown')}), try {progress.attempt}"
        if progress.done:
            return f"resumed: {len(progress.missing)} of {len(self.ledger.pairs)} measurements are missing"
        if position.remeasure_of is not None:
            return f"the reference again: its boot at position {position.remeasure_of} differs from the one before"
        if position.role == "candidate":
            return f"candidate of block {position.block}"
        return f"reference that {'opens' if position.number == self.ledger.positions()[0].number else 'closes'} " \
               f"block {position.block}"


def _estimate(look: decide.Look) -> str:
    if look.theta is None or look.evidence is None:
        return "no estimate"
    return f"{math.exp(look.theta):.3f}x, boots scatter by {look.evidence.own_sd:.1%}"


def _workload_order(names: list[str], block: int, seed: str) -> list[str]:
    """A rotation that moves on by one each block, from a start drawn from the seed: every order effect balances."""
    start = int.from_bytes(hashlib.sha256(f"{seed}|workloads".encode()).digest()[:4], "big")
    shift = (start + block) % len(names)
    return names[shift:] + names[:shift]


def eta(plan_entries: Iterable[dict], measurements: Iterable[dict], host: str, run: str) -> Optional[float]:
    """Seconds that the run will still take on a host if all its planned blocks run; None before anything is known."""
    entries = list(plan_entries)
    ledger = fold(entries, host, run)
    if ledger.finished is not None:
        return 0.0
    records = Records(ledger, measurements)
    left = [p for p in ledger.wanted() if records.progress(p.number).missing]
    budget, made = ledger.planned["budget"].get("boots"), len(records.boots())
    count = len(left) if budget is None else min(len(left), max(0, budget - made))
    if made:
        return round(records.spent_s() / made * count, 1)
    estimate = ledger.planned["estimate_s"]
    total = len(ledger.positions())
    return None if estimate is None else round(float(estimate) * count / max(1, min(total, budget or total)), 1)
