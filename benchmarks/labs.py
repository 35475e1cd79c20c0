"""Simulated labs: hosts whose boots have a declared speed, noise, drift and outliers, driven through the real planner.

`Lab.run` asks `plan.next_boot`, makes up the records of each boot and appends them, until the planner stops. No time
passes and nothing is written. Used by the benchmark of the verdicts and by the tests.
"""
from __future__ import annotations

import hashlib
import math
import random
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

from plumbline.analysis import baselines, experiment, history, plan, times, verdict
from plumbline.ids import ulid

START = times.seconds("2026-11-03T08:00:00Z")


@dataclass
class World:
    """The truth of a lab. Ratios and sds are relative speeds; times in hours."""

    ratio: dict[str, float] = field(default_factory=dict)          # by arm; default 1
    boot_sd: float = 0.01
    request_sd: float = 0.02 / 4                                    # sd that a measurement adds
    candidate_noise: float = 1.0                                    # multiplies boot_sd of candidates
    drift_per_h: float = 0.0
    step: float = 0.0
    step_at_h: Optional[float] = None
    ramp: float = 0.0                                               # speed lost over the first hour, exponentially
    outlier_share: float = 0.0
    outlier: float = -0.10
    boot_h: float = 7.5 / 60
    tok_s: float = 88.8
    accept_length: dict[str, float] = field(default_factory=dict)   # by arm; default 1


def make_experiment(candidates: int = 1, **keys: Any) -> dict:
    """An experiment document of one workload with ``candidates`` arms, normalised; ``keys`` override."""
    document = {"schema": "plumbline.experiment/1", "name": "lab", "reference": {"variant": "baseline"},
                "workloads": ["one-stream"], "seed": 1, **keys}
    if candidates:
        document["axes"] = {"variant": [f"candidate-{i + 1}" for i in range(candidates)]}
    return experiment.normalise(document, "lab.yml")


CATALOGUES: dict[str, dict[str, Any]] = {
    "variants": {"baseline": {"args": {}, "draft": None}, **{
        f"candidate-{i}": {"args": {"speculative-algorithm": "EAGLE3", "speculative-num-steps": i,
                                    "speculative-eagle-topk": 1, "speculative-num-draft-tokens": i + 1},
                           "draft": "eagle3"} for i in range(1, 41)},
        **{f"imposed-{length}": {"args": {"speculative-algorithm": "EAGLE3", "speculative-num-steps": 2,
                                          "speculative-eagle-topk": 1, "speculative-num-draft-tokens": 3},
                                 "draft": "eagle3", "environment": {"SGLANG_SIMULATE_ACC_LEN": length}}
           for length in ("1.5", "2.0", "2.5")}},
    "nccl_profiles": {"tuned": {"variables": {"NCCL_PROTO": "LL"}}, "none": {"variables": {}}},
    "workloads": {"one-stream": {"concurrency": 1, "requests": 16, "output_tokens": 256},
                  "sixteen": {"concurrency": 16, "requests": 64, "output_tokens": 256},
                  **{f"load-{i}": {"concurrency": 2 ** i, "requests": 16, "output_tokens": 256} for i in range(8)}},
}


class Lab:
    """One host with its records. ``mutate`` may change a record before it is kept (flags, failures, states)."""

    def __init__(self, world: World, document: dict, seed: int = 1, host: str = "sim-1",
                 mutate: Optional[Callable[[dict, dict], dict]] = None, compare: Any = None) -> None:
        self.world, self.document, self.host, self.mutate, self.compare = world, document, host, mutate, compare
        self.rng = random.Random(seed)
        self.entries: list[dict] = []
        self.measurements: list[dict] = []
        self.baselines: list[dict] = []
        self.states: dict[str, dict] = {}
        self.clock_h = 0.0
        self.boots: list[dict] = []
        self.runs = 0

    def now(self) -> str:
        return times.text(START + self.clock_h * 3600.0)

    def begin(self) -> str:
        """Plan the next run; returns its id."""
        self.runs += 1
        run = ulid(START + self.clock_h * 3600.0, hashlib.sha256(f"{self.host}{self.runs}".encode()).digest()[:10])
        arms = experiment.arms(self.document, CATALOGUES, {"nccl_profile": "tuned", "build": "sim-b"})
        loads = {w: CATALOGUES["workloads"][w] for w in self.document["workloads"]}
        self.entries.append(plan.first(self.document, self.host, arms, loads, run, self.document["seed"], self.now()))
        self.run_start_h = self.clock_h
        return run

    def ask(self, run: str) -> dict:
        """What the planner says next; its amendment is kept."""
        answer = plan.next_boot(self.entries, self.measurements, self.baselines, self.document, self.host, run,
                                self.now(), states=self.states, compare_states=self.compare)
        if answer["amend"]:
            self.entries.append(answer["amend"])
        return answer

    def run(self, most: int = 500) -> tuple[str, dict]:
        """A whole run: (id, what the planner said at the end)."""
        run = self.begin()
        for _ in range(most):
            answer = self.ask(run)
            if "stop" in answer:
                return run, answer
            self.measure(answer["boot"])
        raise AssertionError(f"the planner did not stop within {most} boots")

    def measure(self, boot: dict, only: Optional[int] = None) -> None:
        """Make the records of a boot (of its first ``only`` workloads, if the controller is to die there)."""
        speed = self.speed(boot)
        for workload in boot["workloads"][:only]:
            record = self.record(boot, workload, speed * math.exp(self.rng.gauss(0, self.world.request_sd)))
            record = self.mutate(record, boot) if self.mutate else record
            self.measurements.append(record)
            if record["role"] == "baseline":
                self.baselines.append(baselines.record(record, workload["spec"]))
        self.clock_h += self.world.boot_h
        self.boots.append(boot)

    def speed(self, boot: dict) -> float:
        world, at = self.world, self.clock_h - self.run_start_h
        candidate = boot["role"] == "candidate"
        sd = world.boot_sd * (world.candidate_noise if candidate else 1.0)
        y = math.log(world.ratio.get(boot["arm"]["name"], 1.0)) + self.rng.gauss(0, sd)
        y += world.drift_per_h * at - world.ramp * (1 - math.exp(-at / 0.5))
        if world.step_at_h is not None and at >= world.step_at_h:
            y += math.log1p(world.step)
        if self.rng.random() < world.outlier_share:
            y += math.log1p(world.outlier)
        return math.exp(y)

    def record(self, boot: dict, workload: dict, speed: float) -> dict:
        """A measurement record as the controller would write it."""
        length = self.world.accept_length.get(boot["arm"]["name"], 1.0)
        rate = self.world.tok_s * speed
        timing = dict.fromkeys(("mean", "p50", "p90", "p99"), 10.0)
        metrics = {"output_tok_s": rate, "decode_tok_s": rate, "ttft_ms": timing, "itl_ms": timing,
                   "step_ms": 1000.0 * length / rate, "accept_length": length, "verify_ms": None, "draft_ms": None,
                   "graph_share": 1.0, "requests": 16, "completion_tokens": 4096, "errors": 0}
        return {"schema": "plumbline.measurement/1", "id": workload["id"], "run": boot["run"],
                "experiment": boot["experiment"], "engine": "simulator", "host": boot["host"], "boot": boot["id"],
                "block": boot["block"], "position": boot["position"], "arm": boot["arm"]["name"],
                "variant": boot["arm"]["variant"], "nccl_profile": boot["arm"]["nccl_profile"],
                "build": boot["arm"]["build"], "role": boot["role"], "workload": workload["name"],
                "repeat": workload["repeat"], "started_at": self.now(), "duration_s": 60.0, "status": "ok",
                "failure": None, "metrics": metrics, "checks": [], "flags": [], "conditions": {},
                "state": {"digest": hashlib.sha256(b"state").hexdigest(), "groups": {"build": "b", "nccl": "n"},
                          "unverified": []},
                "server": {"start_s": self.world.boot_h * 3600 - 60, "argv": [], "version": "0.5.23", "boot_id": None},
                "nccl": {"ranks": 8, "profile_in_force": True, "proof": None, "missing": [], "overridden": [],
                         "ignored": [], "not_read": []}, "evidence": []}

    def verdict(self, run: str) -> dict:
        """The verdict document of a run."""
        return verdict.build(self.document, run, self.entries, self.measurements, {self.host: self.baselines},
                             self.states, self.compare)

    def spread_history(self, days: int) -> None:
        """Let days pass before the next run."""
        self.clock_h += 24.0 * days


__all__ = ["CATALOGUES", "START", "Lab", "World", "history", "make_experiment"]
