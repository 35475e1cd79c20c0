"""A timed, data-checked all-reduce under a hard time limit: what hangs becomes a diagnosis, what is wrong is never
timed as right.
"""

from __future__ import annotations

import json
import os
import pkgutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Dict, List, Optional, Union

from ..errors import PlumblineError
from ..files import read_lines, write_atomic, write_json
from . import collective_worker  # noqa: F401  (read as text below: what is not imported, Ansible does not send)

PathLike = Union[str, Path]
# Decode: batch x hidden x 2 bytes; prefill: up to the chunk of a long prompt.
DECODE_SIZES = tuple(4096 << i for i in range(9))
PREFILL_SIZES = (4 << 20, 8 << 20, 16 << 20, 64 << 20)
BACKENDS = ("nccl", "gloo", "socket")
GRACE_S = 3.0  # after one rank has died, for the others to say what they saw
_TAIL = 2000


def worker_source() -> str:
    data = pkgutil.get_data(__package__, "collective_worker.py")
    if data is None:
        raise PlumblineError(
            "the collective's text was not shipped", "module_utils/plumbline/nccl/collective_worker.py"
        )
    return data.decode()


def run(
    *,
    python: str,
    world: int,
    sizes: Sequence[int],
    folder: PathLike,
    environment: Mapping[str, str],
    backend: str = "nccl",
    dtype: str = "bfloat16",
    graph: bool = True,
    limit_s: float = 120.0,
    iterations: Optional[int] = None,
    fault: Optional[Mapping[str, Any]] = None,
) -> Dict[str, Any]:
    """Run the all-reduce on ``world`` ranks, one process each, below ``folder`` (made anew for this run).

    ``environment`` is the whole environment of the ranks. Returns ``{status, results: [{bytes, eager_us, graph_us,
    wrong, wrong_in_graph, ranks}], facts: {device, nccl, torch, backend}, diagnosis, wall_s}``. ``status``: ``ok``;
    ``wrong_data`` (``results`` say where, and have no times for it); ``hang`` (over the limit); ``crash``.
    ``diagnosis`` is null or ``{what, ranks: [{rank, phase, bytes, since_s, exit, tail}], missing: [rank], remedy}``.
    Times in us: the slowest rank's median, minimum and maximum. Results of sizes that all ranks finished are kept
    whatever came after. Only processes started here are ended.
    """
    if backend not in BACKENDS:
        raise PlumblineError("unknown backend", "backend", backend, ", ".join(BACKENDS))
    if world < 2:
        raise PlumblineError(
            "a collective needs two ranks or more",
            "world",
            world,
            "the number of GPUs, at least 2",
            "with one GPU NCCL has nothing to do",
        )
    base = Path(folder)
    if base.exists() and any(base.iterdir()):
        raise PlumblineError(
            "the folder of a collective is not empty", "folder", str(base), "a new folder for each run"
        )
    base.mkdir(parents=True, exist_ok=True)
    write_atomic(base / "worker.py", worker_source())
    write_json(
        base / "spec.json",
        {
            "world": world,
            "backend": backend,
            "folder": str(base),
            "sizes": list(sizes),
            "dtype": dtype,
            "graph": graph,
            "iterations": iterations,
            "fault": dict(fault) if fault else None,
        },
    )
    began = time.monotonic()
    workers = _launch(python, base, world, environment)
    try:
        over = _wait(workers, began + limit_s)
    finally:
        ranks = _end(base, workers)
    return _outcome(base, world, ranks, over, limit_s, time.monotonic() - began, environment)


def _launch(python: str, base: Path, world: int, environment: Mapping[str, str]) -> List[subprocess.Popen]:
    workers: List[subprocess.Popen] = []
    try:
        for rank in range(world):
            with open(base / f"rank{rank}.log", "wb") as log:
                workers.append(
                    subprocess.Popen(
                        [python, str(base / "worker.py"), str(base / "spec.json"), str(rank), str(os.getpid())],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        env=dict(environment),
                        start_new_session=True,
                    )
                )
    except OSError as error:
        for worker in workers:
            worker.kill()
            worker.wait()
        raise PlumblineError(
            "a rank cannot be started", "python", python, "the Python of a build with torch", str(error)
        ) from error
    return workers


def _wait(workers: Sequence[subprocess.Popen], until: float) -> bool:
    """Whether the limit was reached. One that fails ends the wait, after a grace for the others."""
    while True:
        codes = [w.poll() for w in workers]
        if all(code is not None for code in codes):
            return False
        if any(code not in (None, 0) for code in codes):
            until = min(until, time.monotonic() + GRACE_S)
            if all(code is not None for code in codes) or time.monotonic() >= until:
                return False
        if time.monotonic() >= until:
            return True
        time.sleep(0.05)


def _end(base: Path, workers: Sequence[subprocess.Popen]) -> List[Dict[str, Any]]:
    """Look at every rank, then end those that are left, each by its own group."""
    ranks = []
    for rank, worker in enumerate(workers):
        code = worker.poll()
        beat = _heartbeat(base, rank)
        log = (base / f"rank{rank}.log").read_text(errors="replace")
        ranks.append(
            {
                "rank": rank,
                "pid": worker.pid,
                "step": beat.get("step", 0),
                "phase": beat.get("phase", "not started"),
                "bytes": beat.get("bytes"),
                "since_s": round(time.time() - beat["at"], 1) if "at" in beat else None,
                "exit": code,
                "state": _state(worker.pid) if code is None else "ended",
                "tail": log[-_TAIL:],
            }
        )
    for worker in workers:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
    return ranks


def _heartbeat(base: Path, rank: int) -> Dict[str, Any]:
    try:
        return json.loads((base / f"rank{rank}.heartbeat").read_text())
    except (OSError, ValueError):
        return {}


def _state(pid: int) -> str:
    """The kernel's word for what a process does: running, sleeping, stopped, ..."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"
    return {"R": "running", "S": "sleeping", "D": "waiting for a device", "T": "stopped", "Z": "ended"}.get(
        letter, letter
    )


def harvest(folder: PathLike, world: int) -> Dict[str, Any]:
    """What is whole in a folder, also of a run that was interrupted: ``{facts, results}``; a size counts if every
    rank has it.
    """
    base = Path(folder)
    lines = [read_lines(base / f"rank{rank}.results") for rank in range(world)]
    facts: Dict[str, Any] = next((line["facts"] for line in lines[0] if "facts" in line), {}) if lines else {}
    by_size: Dict[int, List[Dict[str, Any]]] = {}
    for mine in lines:
        for line in mine:
            if "bytes" in line:
                by_size.setdefault(line["bytes"], []).append(line)
    results = [_merge(entries) for size, entries in sorted(by_size.items()) if len(entries) == world]
    return {"facts": facts, "results": results}


def _merge(entries: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    """One size over all ranks. An all-reduce is over when the slowest rank is; wrong data has no time."""
    wrong = sum(e["wrong"] for e in entries)
    in_graph = [e["wrong_in_graph"] for e in entries if e["wrong_in_graph"] is not None]
    good = not wrong and not sum(in_graph)
    slowest = {
        name: max((e[name] for e in entries if e[name]), key=lambda t: t["median"], default=None)
        for name in ("eager_us", "graph_us")
    }
    return {
        "bytes": entries[0]["bytes"],
        "elements": entries[0]["elements"],
        "eager_us": slowest["eager_us"] if good else None,
        "graph_us": slowest["graph_us"] if good else None,
        "wrong": wrong,
        "wrong_in_graph": sum(in_graph) if in_graph else None,
        "ranks": len(entries),
        "wrong_ranks": [e["rank"] for e in entries if e["wrong"] or e["wrong_in_graph"]],
    }


def _outcome(
    base: Path,
    world: int,
    ranks: List[Dict[str, Any]],
    over: bool,
    limit_s: float,
    wall_s: float,
    environment: Mapping[str, str],
) -> Dict[str, Any]:
    found = harvest(base, world)
    wrong = [r for r in found["results"] if r["wrong"] or r["wrong_in_graph"]]
    failed = [r for r in ranks if r["exit"] not in (None, 0)]
    status, diagnosis = "ok", None
    if over:
        status, diagnosis = "hang", _hang(ranks, limit_s, environment)
    elif failed:
        status, diagnosis = "crash", _crash(ranks, failed)
    elif wrong:
        status, diagnosis = "wrong_data", _wrong(wrong)
    return {"status": status, **found, "diagnosis": diagnosis, "wall_s": round(wall_s, 2)}


def _where(rank: Mapping[str, Any]) -> str:
    size = f" of {rank['bytes']} bytes" if rank["bytes"] else ""
    return f"'{rank['phase']}'{size}"


def _wrong(results: List[Dict[str, Any]]) -> Dict[str, Any]:
    places = []
    for r in results:
        who = f"rank{'s' if len(r['wrong_ranks']) > 1 else ''} {', '.join(map(str, r['wrong_ranks']))}"
        places.append(f"{r['wrong'] or r['wrong_in_graph']} of {r['elements']} elements at {r['bytes']} bytes, {who}")
    return {
        "what": f"the all-reduce gave wrong data: {'; '.join(places)}",
        "ranks": [],
        "missing": [],
        "remedy": "do not serve with these settings: take LL128 out of NCCL_PROTO, or try NCCL_P2P_DISABLE=1",
    }


def _hang(ranks: List[Dict[str, Any]], limit_s: float, environment: Mapping[str, str]) -> Dict[str, Any]:
    furthest = max(r["step"] for r in ranks)
    behind = [r for r in ranks if r["step"] < furthest]
    head = f"the collective hung: not over after {limit_s:g} s"
    if behind:
        lead = next(r for r in ranks if r["step"] == furthest)
        late = "; ".join(_late(r) for r in behind)
        what = f"{head}; {late}; the others wait in {_where(lead)}"
        remedy = (
            "see why that rank does not come: its log, NCCL's debug file, whether it has the profile, "
            "whether its GPU is busy"
        )
    else:
        what = f"{head}; all ranks are in {_where(ranks[0])} and none comes back"
        p2p = "off" if environment.get("NCCL_P2P_DISABLE") == "1" else "on"
        remedy = (
            f"P2P is {p2p}; with P2P on over PCIe an IOMMU or ACS on the bridges is the most frequent cause: see "
            "/proc/cmdline and lspci -vvv (ACSCtl), or try NCCL_P2P_DISABLE=1; GPUs busy with no process need a reset"
        )
    return {"what": what, "ranks": ranks, "missing": [r["rank"] for r in behind], "remedy": remedy}


def _late(rank: Mapping[str, Any]) -> str:
    since = "?" if rank["since_s"] is None else f"{rank['since_s']:g}"
    return (
        f"rank {rank['rank']} did not arrive: it is in {_where(rank)} since {since} s, process {rank['pid']} is "
        f"{rank['state']}"
    )


def _crash(ranks: List[Dict[str, Any]], failed: List[Dict[str, Any]]) -> Dict[str, Any]:
    first = min(failed, key=lambda r: r["step"])
    lines = [line for line in first["tail"].split("\n") if line.strip()]
    said = [line for line in lines if "NCCL WARN" in line or "Error" in line]
    last = (said or lines or ["it left no word"])[-1].strip()
    code = f"signal {-first['exit']}" if first["exit"] < 0 else f"exit status {first['exit']}"
    return {
        "what": f"rank {first['rank']} ended with {code} in {_where(first)}: {last}",
        "ranks": ranks,
        "missing": [r["rank"] for r in failed],
        "remedy": "see the tail of that rank's log",
    }
