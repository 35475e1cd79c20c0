"""What can go wrong with a profile, done on purpose with two real ranks, and what the project's own proof says of each.

    python negatives.py WORK RESULTS         (with the controller's Python)

Each case is one start of two bare torch workers with NCCL's debug output, read by `plumbline.nccl.proof`. A case passes if the proof
does not hold and names the fault where it is (`expect`). Cases that validation would refuse before a start are also given to it.
Files of NCCL's are only written below WORK; what keeps NVLink multicast off is in every environment and conf file.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent.parent
PROFILE = {
    "NCCL_PROTO": "LL",
    "NCCL_ALGO": "Ring",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_MAX_NCHANNELS": "16",
    "NCCL_BUFFSIZE": "16777216",
    "NCCL_NTHREADS": "512",
}
LIMIT_S = 45.0


@dataclass(frozen=True)
class Case:
    """``environments``: what each rank gets beside the guard. ``expect``: parts of the proof's words that name the fault."""

    name: str
    asked: Mapping[str, str]
    environments: tuple[Mapping[str, str], Mapping[str, str]]
    expect: tuple[str, ...]
    delivery: str = "env_file"
    sources: tuple[Mapping[str, Any], ...] = ()
    late: Mapping[str, str] = field(default_factory=dict)
    refused: bool = False
    in_force: tuple[Any, ...] = (False,)


def both(environment: Mapping[str, str]) -> tuple[Mapping[str, str], Mapping[str, str]]:
    return environment, environment


def cases(work: Path, guard: Mapping[str, str]) -> list[Case]:
    """The cases; writes the files that they need below ``work``."""
    conf = work / "conf" / "nccl.conf"
    conf.parent.mkdir(parents=True, exist_ok=True)
    # NCCL_CONF_FILE replaces a conf file that holds the guard: so it holds it, too.
    conf.write_text(
        "".join(
            f"{k}={v}\n" for k, v in {**{k: v for k, v in guard.items() if k.startswith("NCCL_")}, **PROFILE}.items()
        )
    )
    ours, before = work / "ours", work / "before"
    for folder, lines in ((ours, [f"os.environ.setdefault({k!r}, {v!r})" for k, v in PROFILE.items()]), (before, [])):
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text("\n".join(["import os", *lines, ""]))
    renamed = {("NCCL_MAX_CHANNELS" if k == "NCCL_MAX_NCHANNELS" else k): v for k, v in PROFILE.items()}
    cased = {**PROFILE, "NCCL_P2P_LEVEL": "sys"}
    beyond = {**PROFILE, "NCCL_NTHREADS": "300"}
    many = {**PROFILE, "NCCL_PROTO": "LL,LL64"}
    wins = {"NCCL_CONF_FILE": str(conf), "NCCL_PROTO": "Simple"}
    return [
        Case("control", PROFILE, both(PROFILE), (), in_force=(True,)),
        Case("misspelt-name", renamed, both(renamed), ("NCCL_MAX_CHANNELS",), refused=True),
        Case("wrong-case", cased, both(cased), ("NCCL_P2P_LEVEL",), refused=True),
        Case("value-too-many", many, both(many), ("NCCL_PROTO", "LL64"), refused=True),
        Case("value-out-of-range", beyond, both(beyond), ("NCCL_NTHREADS",), refused=True),
        Case(
            "conf-file-loses",
            PROFILE,
            both(wins),
            ("NCCL_PROTO", "environment"),
            "nccl_conf",
            (
                {"name": "environment of the server", "kind": "environment", "variables": {"NCCL_PROTO": "Simple"}},
                {"name": "profile pcie-ll-ring by nccl_conf", "kind": "nccl_conf", "variables": PROFILE},
            ),
        ),
        Case(
            "shadowed-sitecustomize",
            PROFILE,
            both({"PYTHONPATH": f"{before}:{ours}"}),
            ("nothing of the profile",),
            "sitecustomize",
        ),
        Case("set-after-init", PROFILE, both({}), ("later communicator",), late=PROFILE),
        Case("one-rank-without", PROFILE, (PROFILE, {}), ("rank 1",)),
    ]


def start(case: Case, place: Path, python: str, guard: Mapping[str, str]) -> list[subprocess.Popen[bytes]]:
    from plumbline.nccl.proof import debug_environment

    place.mkdir(parents=True)
    base = {k: os.environ[k] for k in ("PATH", "HOME", "LD_LIBRARY_PATH", "CUDA_HOME") if os.environ.get(k)}
    late = ["--late", json.dumps(case.late)] if case.late else []
    return [
        subprocess.Popen(
            [python, str(HERE / "negatives_worker.py"), str(rank), "2", str(place / "store"), *late],
            env={**base, **guard, **environment, **debug_environment(str(place))},
            stdin=subprocess.DEVNULL,
            stdout=(place / f"rank{rank}.out").open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        for rank, environment in enumerate(case.environments)
    ]


def finish(workers: list[subprocess.Popen[bytes]], until: float) -> tuple[str, list[int]]:
    """Wait; what is left at ``until`` is ended. (outcome, exit codes)"""
    while time.monotonic() < until and any(w.poll() is None for w in workers):
        time.sleep(0.2)
    hung = [rank for rank, w in enumerate(workers) if w.poll() is None]
    for worker in workers:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
    codes = [w.returncode for w in workers]
    if hung:
        return f"hung after {LIMIT_S:.0f} s: rank{'s' if len(hung) > 1 else ''} {', '.join(map(str, hung))}", codes
    return ("ended" if not any(codes) else f"failed with {codes}"), codes


def judge(case: Case, place: Path, outcome: str, nccl: str) -> dict[str, Any]:
    """The proof of this start, and whether it says what is wrong."""
    from plumbline.nccl import proof
    from plumbline.nccl.profile import validate

    logs = [p.read_text(errors="replace") for p in sorted(place.glob("nccl.*.log"))]
    found = proof.prove(
        profile="pcie-ll-ring",
        asked=case.asked,
        delivery=case.delivery,
        logs=logs,
        expected_ranks=2,
        nccl_version=nccl,
        sources=list(case.sources),
        host="gpu-local",
    )
    words = " ".join(
        [
            *found["reasons"],
            *(v["why"] for r in found["ranks"] for k in ("ignored", "overridden", "missing") for v in r[k]),
        ]
    )
    refusal = None
    if case.refused:
        refusal = "; ".join(map(str, validate({"variables": dict(case.asked)}, nccl)))
    caught = (
        found["profile_in_force"] in case.in_force and all(part in words for part in case.expect) and refusal != ""
    )
    per_rank = [
        {
            "rank": r["rank"],
            **{k: [f"{v['name']}: {v.get('why', '')}" for v in r[k]] for k in proof.VERDICTS if k != "taken"},
            "taken": [v["name"] for v in r["taken"]],
        }
        for r in found["ranks"]
    ]
    return {
        "case": case.name,
        "caught": caught,
        "outcome": outcome,
        "profile_in_force": found["profile_in_force"],
        "reasons": found["reasons"],
        "ranks": per_rank,
        "refused_before_a_start": refusal,
        "nccl": found["nccl_version"],
    }


def main() -> None:
    work, results = Path(sys.argv[1]), Path(sys.argv[2])
    known = json.loads((work / "vars.json").read_text())
    guard = known["gpu_environment"]
    manifest = json.loads((work / "root" / "builds" / "current" / "plumbline-build.json").read_text())
    python = str(work / "root" / "builds" / "current" / "venv" / "bin" / "python")
    folder = work / "negatives" / str(int(time.time()))
    folder.mkdir(parents=True)
    todo = cases(folder, guard)
    # Side by side: each needs half a gigabyte of each GPU and is over in seconds, but for the one that may hang.
    until = time.monotonic() + LIMIT_S
    started = [(case, start(case, folder / case.name, python, guard)) for case in todo]
    rows = []
    for case, workers in started:
        outcome, _ = finish(workers, until)
        rows.append(judge(case, folder / case.name, outcome, manifest["nccl_version"] or ""))
        print(
            f"{'caught' if rows[-1]['caught'] else 'NOT CAUGHT'}: {case.name}: {outcome}; {'; '.join(rows[-1]['reasons'])[:300]}",
            flush=True,
        )
    results.mkdir(parents=True, exist_ok=True)
    (results / "negatives.json").write_text(json.dumps(rows, indent=1))
    sys.exit(0 if all(row["caught"] for row in rows) else 1)


if __name__ == "__main__":
    main()
