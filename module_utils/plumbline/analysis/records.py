"""Measurement records: what a target spooled, joined with what the controller knows about the boot.

Pure functions; the schema is `analysis/schemas/measurement.schema.json`, an example stands in docs/records.md.
"""
from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, Optional

from ..ids import made_at
from ..measure.figures import METRICS

SCHEMA = "plumbline.measurement/1"
# Under this mean share of common prefix the outputs differ for another reason than a late tie in the logits.
OUTPUT_SHARE = 0.99


def measurement(boot: dict, spooled: dict, *, engine: str, state: dict, server: dict, nccl: dict,
                reference: Optional[list[dict]] = None) -> dict:
    """The record of one spooled measurement, without its evidence paths.

    ``boot``: as `plan` made it; ``spooled``: as `plumbline_throughput` returned it; ``state``: the state document;
    ``server``: {start_s, argv, version, boot_id}; ``nccl``: {ranks, profile_in_force, proof, ...};
    ``reference``: samples of a baseline measurement of the same run, host and workload, to compare outputs with.
    """
    workload = next(w for w in boot["workloads"] if w["id"] == spooled["id"])
    checks, flags = list(spooled.get("checks", [])), list(spooled.get("flags", []))
    if reference is not None and spooled["status"] == "ok":
        must_equal = workload["spec"].get("greedy_equal", False)
        check, flag = compare_outputs(spooled.get("samples", []), reference, must_equal)
        checks.append(check)
        flags.extend([flag] if flag else [])
    return {
        **_identity(boot, engine), "id": spooled["id"], "workload": workload["name"], "repeat": workload["repeat"],
        "started_at": spooled["started_at"], "duration_s": spooled["duration_s"], "status": spooled["status"],
        "failure": spooled.get("failure"), "metrics": {m: (spooled.get("metrics") or {}).get(m) for m in METRICS},
        "checks": checks, "flags": flags, "conditions": spooled.get("conditions", {}), "state": state_summary(state),
        "server": server, "nccl": nccl, "evidence": [],
    }


def failed_boot(boot: dict, failure: dict, *, engine: str, state: Optional[dict], server: dict, nccl: dict,
                measured: set[str], now: Optional[datetime] = None) -> list[dict]:
    """One failed record for each of the boot's workloads that has no measurement (``measured``: ids that have one).

    ``failure``: {class, detail, ...}. If nothing was measured on the boot, the first record has the time since the boot
    was planned as its duration: a server that hangs at its start takes time, too.
    """
    now = now or datetime.now(timezone.utc)
    at = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    reason = {"class": failure.get("class") or "unknown", "detail": failure.get("detail") or ""}
    left = [w for w in boot["workloads"] if w["id"] not in measured]
    spent_s = 0.0
    if len(left) == len(boot["workloads"]):
        spent_s = round(max(0.0, now.timestamp() - made_at(boot["id"])), 3)
    return [{
        **_identity(boot, engine), "id": w["id"], "workload": w["name"], "repeat": w["repeat"], "started_at": at,
        "duration_s": 0.0 if i else spent_s, "status": "failed", "failure": reason,
        "metrics": dict.fromkeys(METRICS), "checks": [], "flags": [], "conditions": {}, "state": state_summary(state),
        "server": server, "nccl": nccl, "evidence": [],
    } for i, w in enumerate(left)]


def _identity(boot: dict, engine: str) -> dict[str, Any]:
    arm = boot["arm"]
    return {"schema": SCHEMA, "run": boot["run"], "experiment": boot["experiment"], "engine": engine,
            "host": boot["host"], "boot": boot["id"], "block": boot["block"], "position": boot["position"],
            "arm": arm["name"], "variant": arm["variant"], "nccl_profile": arm["nccl_profile"], "build": arm["build"],
            "role": boot["role"]}


def state_summary(document: Optional[dict]) -> dict:
    """{digest, groups: {name: digest}, unverified} of a state document; digest null where it was not observed."""
    if not document:
        return {"digest": None, "groups": {}, "unverified": []}
    return {"digest": document["digest"], "groups": {n: g["digest"] for n, g in document["groups"].items()},
            "unverified": document["unverified"]}


def common_prefix(a: list[int], b: list[int]) -> int:
    """Number of equal leading tokens."""
    n = 0
    for x, y in zip(a, b):
        if x != y:
            break
        n += 1
    return n


def compare_outputs(samples: list[dict], reference: list[dict], must_equal: bool) -> tuple[dict, Optional[dict]]:
    """(check, flag or None): share of requests whose tokens equal the reference's, and of common prefix where not.

    At temperature 0 a server with speculation must produce what the server without it does. Where batch numerics may
    differ (``must_equal`` false) the difference is reported and does not invalidate.
    """
    by_prompt = {s["prompt"]: s for s in reference}
    pairs = [(s, by_prompt[s["prompt"]]) for s in samples if s["prompt"] in by_prompt]
    check = {"name": "output", "source": "the baseline's tokens for the same prompts", "ours": len(samples),
             "theirs": len(reference), "difference": None, "result": "unchecked", "reason": None}
    if not pairs:
        check["reason"] = "no prompt in common with the baseline's measurement"
        return check, None
    equal = sum(a["output_digest"] == b["output_digest"] for a, b in pairs)
    shares = [common_prefix(a["output_ids"], b["output_ids"]) / max(1, len(b["output_ids"])) for a, b in pairs]
    share = sum(shares) / len(shares)
    check.update(ours=equal, theirs=len(pairs), difference=round(1 - share, 6),
                 result="agree" if equal == len(pairs) else "differ")
    if equal == len(pairs):
        return check, None
    detail = f"{equal} of {len(pairs)} outputs equal the baseline's; mean common prefix {share:.1%}"
    return check, {"name": "output_differs", "detail": detail, "invalidates": must_equal and share < OUTPUT_SHARE}


def evidence(spooled: dict) -> dict[str, Any]:
    """{file name: content} of a spooled measurement that belongs into its evidence folder."""
    files = {"samples.json": spooled.get("samples"), "server.log": spooled.get("log_window"),
             "server_info.json": spooled.get("server_info"), "gpu_samples.json": spooled.get("gpu_samples")}
    return {name: content for name, content in files.items() if content}
