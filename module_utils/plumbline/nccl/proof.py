"""The proof that an NCCL profile is in force, rank by rank, from NCCL's own words.

It is made from one proving start with NCCL_DEBUG=INFO and one debug file per process, is bound to the digest of the
host's state, and expires with it. The environment of the worker processes is shown beside it, with the reason why it
proves nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Dict, List, Optional

from ..ids import ulid
from . import allreduce, known, log, reading
from .profile import engine_overrides

SCHEMA = "plumbline.proof/1"
SUBSYSTEMS = "INIT,ENV,TUNING,GRAPH"
ENVIRON_NOTE = (
    "/proc/PID/environ proves nothing here: it shows the environment at exec, so nothing that was set later, read from "
    "a conf file or set by a sitecustomize; and the engine's setproctitle overwrites even that. "
    "Only NCCL's own lines count. (SPT_NOENV=1 keeps it readable.)"
)
# Groups of a state in which a proof may differ from a boot that it speaks for: another variant or draft asks for
# other arguments and models. Of the arguments, those that decide about NCCL must be the same.
OTHER_GROUPS = ("engine_args", "models")
ENGINE_ARGS = {
    "tensor-parallel-size": ("tensor-parallel-size", "tp-size", "tp"),
    "pipeline-parallel-size": ("pipeline-parallel-size", "pp-size"),
    "data-parallel-size": ("data-parallel-size", "dp-size"),
    "nnodes": ("nnodes",),
    "device": ("device",),
    **{
        name: (name,)
        for name in (
            "enable-deterministic-inference",
            "enable-dp-attention",
            "enable-flashinfer-allreduce-fusion",
            "enable-mscclpp",
            "enable-nccl-nvls",
            "enable-symm-mem",
            "enable-torch-symm-mem",
            "disable-custom-all-reduce",
        )
    },
}
VERDICTS = ("taken", "overridden", "ignored", "missing", "not_read")


def engine_args(server_args: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    """Of the server's arguments those that decide whether and how NCCL is used, under one name each."""
    given = {str(k).replace("_", "-"): v for k, v in (server_args or {}).items() if v not in (None, False)}
    found = {}
    for name, spellings in ENGINE_ARGS.items():
        values = [given[spelling] for spelling in spellings if spelling in given]
        if values:
            found[name] = values[0]
    return found


def ranks_of(server_args: Optional[Mapping[str, Any]]) -> int:
    """How many ranks share one communicator: tensor parallel x pipeline parallel."""
    found = engine_args(server_args)
    return int(found.get("tensor-parallel-size", 1)) * int(found.get("pipeline-parallel-size", 1))


def debug_environment(folder: str) -> Dict[str, str]:
    """The environment of a proving start: NCCL writes ``nccl.<pid>.log`` files below ``folder``."""
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": SUBSYSTEMS, "NCCL_DEBUG_FILE": f"{folder}/nccl.%p.log"}


def _widest(process: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
    """The communicator that spans the most ranks: its rank is the process's rank."""
    many = [c for c in process["communicators"] if c["nranks"] > 1]
    return max(many, key=lambda c: c["nranks"]) if many else None


def _rank_entry(
    process: Dict[str, Any],
    asked: Mapping[str, str],
    version: str,
    sources: List[Mapping[str, Any]],
    engine: Mapping[str, str],
) -> Dict[str, Any]:
    widest = _widest(process) or {}
    first: Dict[str, Any] = next((c for c in process["communicators"] if c["channels"]), {})
    entry: Dict[str, Any] = {
        "rank": widest.get("rank"),
        "nranks": widest.get("nranks"),
        "pid": process["pid"],
        "host": process["host"],
        "device": widest.get("device"),
        "nccl_version": process["version"],
        "communicators": [
            {"function": c["function"], "nranks": c["nranks"], "complete": c["complete"]}
            for c in process["communicators"]
        ],
        "init_complete": bool(widest) and all(c["complete"] for c in process["communicators"] if c["nranks"] > 1),
        "asked": dict(asked),
        **{verdict: [] for verdict in VERDICTS},
    }
    for name, value in asked.items():
        verdict, particulars = reading.judge(name, value, process, version, sources, engine)
        entry[verdict].append(particulars)
    entry["additional"] = reading.additional(process, asked, sources)
    entry["channels"] = first.get("channels")
    entry["transports"] = process["transports"]
    entry["algorithms"] = [
        {k: row[k] for k in ("function", "bytes", "algo", "proto", "channels", "count")}
        for row in sorted(process["tuning"], key=lambda r: (r["function"] or "", r["bytes"]))
    ]
    entry["patterns"] = [dict(pattern) for pattern in process["patterns"]]
    entry["notes"] = list(process["notes"])
    if process["p2p_chunk_bytes"] is not None and process["p2p_chunk_bytes"] <= 0:
        entry["notes"].append(f"P2P chunk size {process['p2p_chunk_bytes']}: the buffer size asked for makes no sense")
    entry["warnings"] = [w["text"] for w in process["warnings"]]
    return entry


def _speaks_against(entry: Dict[str, Any], asked: Mapping[str, str]) -> List[str]:
    """What on this rank speaks against the profile being in force."""
    found: List[str] = []
    late = [v["name"] for v in entry["missing"] if v["why"].startswith("first read by a later")]
    if len(entry["missing"]) > 1 and len(entry["missing"]) == len(asked):
        then = f"; {', '.join(late)} came with a later communicator: set after the first was made" if late else ""
        found.append(f"nothing of the profile reached it in time{then}")
    else:
        found += [f"{v['name']} missing: {v['why']}" for v in entry["missing"]]
    for verdict in ("overridden", "ignored"):
        found += [f"{v['name']} {verdict}: {v['why']}" for v in entry[verdict] if v["name"].startswith("NCCL_")]
    if not entry["init_complete"]:
        last = f": {entry['warnings'][-1]}" if entry["warnings"] else "; NCCL gave no warning: it hangs or was killed"
        found.append(f"its communicator was never complete{last}")
    if not asked and entry["additional"]:
        more = ", ".join(
            f"{v['name']}={v['value']} (from {v['source'] or 'an unknown source'})" for v in entry["additional"]
        )
        found.append(f"the profile is to set nothing, yet these are in force: {more}")
    return found


def _reasons(ranks: List[Dict[str, Any]], expected: int, missing: List[int], asked: Mapping[str, str]) -> List[str]:
    """Why the profile is not in force, each reason once with the ranks it holds for; [] if nothing speaks against
    it.
    """
    by_text: Dict[str, List[Any]] = {}
    for entry in ranks:
        for text in _speaks_against(entry, asked):
            by_text.setdefault(text, []).append(entry["rank"])
    reasons = [f"rank {rank} of {expected} wrote no NCCL log: it did not arrive" for rank in missing]
    for text, who in by_text.items():
        reasons.append(f"rank{'s' if len(who) > 1 else ''} {', '.join(map(str, who))} of {expected}: {text}")
    return reasons


def prove(
    *,
    profile: str,
    asked: Mapping[str, str],
    delivery: Optional[str],
    logs: Sequence[str],
    expected_ranks: int,
    state: Optional[str] = None,
    groups: Optional[Mapping[str, str]] = None,
    host: str = "",
    at: str = "",
    nccl_version: Optional[str] = None,
    sglang_version: str = "",
    server_log: str = "",
    server_args: Optional[Mapping[str, Any]] = None,
    sources: Sequence[Mapping[str, Any]] = (),
    environ: Sequence[Mapping[str, Any]] = (),
    hook_runs: Sequence[Mapping[str, Any]] = (),
) -> Dict[str, Any]:
    """The proof document (schema ``plumbline.proof/1``).

    ``asked``: the profile's variables as text. ``logs``: texts of NCCL's debug files. ``expected_ranks``: tensor
    parallel size. ``state``: digest of the observed state, ``groups``: those of its groups. ``at``: RFC 3339.
    ``sources``: what on the host sets NCCL variables, in order of precedence, [{name, kind, variables}].
    ``environ``: readings of /proc/PID/environ [{pid, process, readable, visible}]. ``hook_runs``: what our
    sitecustomize left [{pid, set, kept, ...}]. ``profile_in_force``: true; false (``reasons`` say why); null if the
    start made no communicator of more than one rank.
    """
    document = log.merge([log.parse(text) for text in logs])
    with_communicator = [p for p in document["processes"] if _widest(p)]
    found = document["version"] or nccl_version or ""
    version = ".".join(map(str, known.parse_version(found))) if found else ""
    engine = engine_overrides(sglang_version) if sglang_version else {}
    by_precedence = list(sources)
    ranks = sorted(
        (_rank_entry(p, asked, version, by_precedence, engine) for p in with_communicator),
        key=lambda r: (r["rank"], r["pid"]),
    )
    seen = {rank for p in with_communicator for rank in p["ranks"]}
    missing_ranks = [rank for rank in range(expected_ranks) if rank not in seen] if expected_ranks > 1 and ranks else []
    reasons = _reasons(ranks, expected_ranks, missing_ranks, asked)
    in_force: Optional[bool] = not reasons
    uncertain = sorted({v["name"] for r in ranks for v in r["not_read"] if not v["certain"]})
    if not ranks:
        in_force = None
        reasons = [
            "no NCCL communicator of more than one rank was made"
            + (": with one rank NCCL is not used" if expected_ranks <= 1 else "; no debug file tells of one")
        ]
    elif in_force and uncertain:
        in_force = None
        reasons = [f"{name}: no line, and it cannot be told whether NCCL had a need to read it" for name in uncertain]
    lead = next((r for r in ranks if r["algorithms"]), ranks[0] if ranks else None)
    used = allreduce.implementation(server_log, lead["algorithms"] if lead else [], server_args)
    return {
        "schema": SCHEMA,
        "id": ulid(),
        "at": at,
        "host": host,
        "state": state,
        "groups": dict(groups) if groups else None,
        "engine_args": engine_args(server_args),
        "profile": profile,
        "delivery": delivery,
        "asked": dict(asked),
        "nccl_version": version or None,
        "expected_ranks": expected_ranks,
        "ranks": ranks,
        "missing_ranks": missing_ranks,
        "profile_in_force": in_force,
        "reasons": reasons,
        "allreduce": used["allreduce"],
        "allreduce_evidence": used["evidence"],
        "custom_all_reduce": used["custom"],
        "matters_at_decode": used["matters_at_decode"],
        "algorithms": lead["algorithms"] if lead else [],
        "sources": [dict(s) for s in sources],
        "environ": [dict(e) for e in environ],
        "environ_note": ENVIRON_NOTE,
        "hook_runs": [dict(h) for h in hook_runs],
    }


def expired(
    document: Mapping[str, Any],
    state: Optional[str],
    profile: str,
    delivery: Optional[str],
    groups: Optional[Mapping[str, str]] = None,
    server_args: Optional[Mapping[str, Any]] = None,
) -> Optional[str]:
    """Why a proof does not speak for a boot of this state, profile and delivery; None if it does.

    It speaks for the very state in which it was made. With the ``groups`` of the boot's state and its
    ``server_args`` it also speaks for one that differs in models and arguments only, if the arguments that decide
    about NCCL are the same: one proof for all variants of a host. A proof without a state never speaks.
    """
    if document["profile"] != profile:
        return f"the proof is of profile {document['profile']}, not {profile}"
    if document["delivery"] != delivery and document["asked"]:
        return f"the proof is of delivery {document['delivery']}, not {delivery}"
    if document["state"] and document["state"] == state:
        return None
    made_in = (document["state"] or "unknown")[:12]
    differs = f"the state is {(state or 'unknown')[:12]}, the proof was made in {made_in}"
    if not document["state"] or not state or not groups or not document["groups"] or server_args is None:
        return differs
    names = sorted({*groups, *document["groups"]} - set(OTHER_GROUPS))
    other = [name for name in names if groups.get(name) != document["groups"].get(name)]
    if other:
        return f"{differs}; it differs in {', '.join(other)}"
    now = engine_args(server_args)
    if now != document["engine_args"]:
        return f"{differs}; of the arguments {now} the proof had {document['engine_args']}"
    return None


def for_measurement(
    proofs: Sequence[Mapping[str, Any]],
    *,
    state: Optional[str],
    profile: str,
    delivery: Optional[str],
    ranks: Optional[int] = None,
    groups: Optional[Mapping[str, str]] = None,
    server_args: Optional[Mapping[str, Any]] = None,
) -> Dict[str, Any]:
    """A measurement's ``nccl``: the newest proof that still speaks for it, or null with the reason.

    ``{ranks, profile_in_force, proof, missing, overridden, ignored, not_read, reason}``; the lists hold "rank N:
    NAME". ``groups`` and ``server_args``: see ``expired``.
    """

    def why_not(proof: Mapping[str, Any]) -> Optional[str]:
        return expired(proof, state, profile, delivery, groups, server_args)

    result: Dict[str, Any] = {"ranks": ranks, "profile_in_force": None, "proof": None, "reason": ""}
    result.update({verdict: [] for verdict in ("missing", "overridden", "ignored", "not_read")})
    valid = [p for p in proofs if why_not(p) is None]
    if not valid:
        same = [p for p in proofs if p["profile"] == profile]
        newest = max(same, key=lambda p: p["id"]) if same else None
        never = f"profile {profile} was never proven on this host"
        result["reason"] = (why_not(newest) or "") if newest else never
        return result
    proof = max(valid, key=lambda p: p["id"])
    result.update(
        proof=proof["id"],
        profile_in_force=proof["profile_in_force"],
        ranks=len(proof["ranks"]),
        reason="; ".join(proof["reasons"]),
    )
    for verdict in ("missing", "overridden", "ignored", "not_read"):
        result[verdict] = [f"rank {r['rank']}: {v['name']}" for r in proof["ranks"] for v in r[verdict]]
    return result


def read_environ(pids: Sequence[int], asked: Mapping[str, str]) -> List[Dict[str, Any]]:
    """What /proc/PID/environ shows of the asked variables: ``[{pid, process, readable, visible: [NAME], entries}]``.
    No proof.
    """
    readings = []
    for pid in pids:
        reading: Dict[str, Any] = {"pid": pid, "process": "", "readable": False, "visible": [], "entries": None}
        try:
            title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            entries = [e for e in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if b"=" in e]
        except OSError:
            readings.append(reading)
            continue
        names = {e.split(b"=", 1)[0].decode(errors="replace") for e in entries}
        reading.update(
            process=title[:80], readable=True, visible=sorted(n for n in asked if n in names), entries=len(entries)
        )
        readings.append(reading)
    return readings


def collect(folder: Path, server_log: Optional[str] = None, ran_dir: Optional[str] = None) -> Dict[str, Any]:
    """What a proving start has left: ``{logs: {file: text}, pids, server_log: text, hook_runs: [..]}``; what is not
    there is empty.
    """
    logs = {p.name: p.read_text(errors="replace") for p in sorted(folder.glob("nccl.*.log"))}
    pids = [int(name.split(".")[1]) for name in logs if name.split(".")[1].isdigit()]
    text = ""
    if server_log and Path(server_log).is_file():
        text = Path(server_log).read_text(errors="replace")
    runs = []
    for path in sorted(Path(ran_dir).glob("*.json")) if ran_dir else []:
        try:
            runs.append(json.loads(path.read_text()))
        except ValueError:  # a process that was killed while it wrote
            continue
    return {"logs": logs, "pids": pids, "server_log": text, "hook_runs": runs}


def shorten(text: str, most: int = 60000) -> str:
    """A long log without its middle: the start has the variables, the end what happened last."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
