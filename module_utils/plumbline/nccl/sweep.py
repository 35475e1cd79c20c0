"""Profiles x modes x sizes: which settings make the all-reduce of this host faster, which slower, and which wrong.

Results are appended as they come and a sweep that was interrupted goes on where it was: what all ranks had finished
is kept. A hang or a crash is an outcome that is recorded, not repeated.
"""

from __future__ import annotations

import datetime
import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

from ..digest import digest
from ..errors import PlumblineError
from ..files import append_line, read_lines, write_json
from ..gpu import samples
from . import collective, datacheck, log
from .proof import debug_environment

PathLike = Union[str, Path]
SCHEMA = "plumbline.nccl-sweep/1"
# A GPU at rest holds some hundred MiB for its driver; the memory of a process that has ended is free within seconds.
IDLE_MIB, SETTLE_S = 2048, 10.0
# As a host is, and through shared memory: the nearest thing to GPUs that cannot talk to each other.
MODES: Dict[str, Dict[str, str]] = {"as-is": {}, "no-p2p": {"NCCL_P2P_DISABLE": "1"}}


def folder_of(root: PathLike, sweep: str) -> Path:
    return Path(root) / "nccl" / "sweeps" / sweep


def read(root: PathLike, sweep: str) -> List[Dict[str, Any]]:
    """All records of a sweep, in the order in which they were made."""
    return read_lines(folder_of(root, sweep) / "results.jsonl")


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def key(
    profile: str,
    variables: Mapping[str, str],
    mode: str,
    extra: Mapping[str, str],
    bound: Optional[Mapping[str, Any]] = None,
) -> str:
    """What one combination is: its names, what they mean, and what it is ``bound`` to (the host's state, its NCCL
    variables).
    """
    return digest([profile, dict(variables), mode, dict(extra), *([dict(bound)] if bound else [])])[:16]


def _combinations(
    profiles: Sequence[Mapping[str, Any]], modes: Sequence[str]
) -> Iterator[Tuple[Dict[str, Any], str, Dict[str, str]]]:
    """Modes outside, profiles inside: neighbours in time differ in the profile only."""
    for mode in modes:
        if mode not in MODES:
            raise PlumblineError("unknown mode of a sweep", "modes", mode, ", ".join(MODES))
        for profile in profiles:
            yield dict(profile), mode, MODES[mode]


def _texts(profile: Mapping[str, Any]) -> Dict[str, str]:
    return {str(k): str(v) for k, v in (profile.get("variables") or {}).items()}


def open_work(
    records: Sequence[Mapping[str, Any]],
    profiles: Sequence[Mapping[str, Any]],
    modes: Sequence[str],
    sizes: Sequence[int],
    retry: bool = False,
    bound: Optional[Mapping[str, Any]] = None,
) -> List[Dict[str, Any]]:
    """What is still to be run: ``[{key, profile, variables, mode, extra, sizes: [missing]}]``.

    ``bound``: see ``key``; what was measured in another state is not there. A combination that hung, crashed or was
    wrong is done, unless ``retry``; one that found the GPUs busy is not.
    """
    done: Dict[str, set] = {}
    ended = set()
    for record in records:
        if record["bytes"] is not None:
            done.setdefault(record["key"], set()).add(record["bytes"])
        elif record["status"] in ("hang", "crash"):
            ended.add(record["key"])
    work = []
    for profile, mode, extra in _combinations(profiles, modes):
        variables = _texts(profile)
        one = key(profile["name"], variables, mode, extra, bound)
        missing = [size for size in sizes if size not in done.get(one, set())]
        if missing and (retry or one not in ended):
            work.append(
                {
                    "key": one,
                    "profile": profile["name"],
                    "variables": variables,
                    "mode": mode,
                    "extra": extra,
                    "sizes": missing,
                }
            )
    return work


class Sweep:
    """One execution of a sweep on this host; ``run()`` again with the same id goes on."""

    def __init__(
        self,
        root: PathLike,
        sweep: str,
        *,
        python: str,
        world: int,
        backend: str,
        environment: Mapping[str, str],
        limit_s: float = 120.0,
        host: str = "",
        graph: bool = True,
        dtype: str = "bfloat16",
        iterations: Optional[int] = None,
        algorithms: bool = True,
        require_idle: bool = True,
        nvidia_smi: str = "nvidia-smi",
        fault: Optional[Mapping[str, Any]] = None,
        state: Optional[Mapping[str, Any]] = None,
        after_hang: Optional[Callable[[], str]] = None,
    ) -> None:
        """``state``: {digest, groups: {name: digest}} of the host as observed; with it, another state is another sweep.
        ``after_hang``: tells what of the host may be the cause.
        """
        self.root, self.sweep, self.folder = Path(root), sweep, folder_of(root, sweep)
        self.python, self.world, self.backend, self.environment = python, world, backend, dict(environment)
        self.limit_s, self.host, self.graph, self.dtype, self.iterations = limit_s, host, graph, dtype, iterations
        self.algorithms, self.require_idle, self.nvidia_smi, self.fault = algorithms, require_idle, nvidia_smi, fault
        self.after_hang = after_hang
        groups = datacheck.of_state((state or {}).get("groups"))
        self.state = {"digest": (state or {}).get("digest"), "groups": groups} if groups else None
        # Without a state (a sweep made by hand) nothing is bound, and no check can be founded on it.
        self.bound = {"groups": groups, "nccl": datacheck.settings(environment)} if groups else None

    def open_work(
        self, profiles: Sequence[Mapping[str, Any]], modes: Sequence[str], sizes: Sequence[int], retry: bool = False
    ) -> List[Dict[str, Any]]:
        """What of these is still to be run in this state."""
        return open_work(read(self.root, self.sweep), profiles, modes, sizes, retry, self.bound)

    def run(
        self, profiles: Sequence[Mapping[str, Any]], modes: Sequence[str], sizes: Sequence[int], retry: bool = False
    ) -> Dict[str, Any]:
        """``{records: all of the sweep, added: [new ones], outcomes: [{profile, mode, status, diagnosis}]}``."""
        self.harvest()
        before = len(read(self.root, self.sweep))
        outcomes = []
        for work in self.open_work(profiles, modes, sizes, retry):
            busy = self.busy()
            if busy:
                outcomes.append(self._outcome(work, "busy", busy))
                break
            outcomes.append(self._one(work))
        records = read(self.root, self.sweep)
        return {"records": records, "added": records[before:], "outcomes": outcomes}

    def checked(
        self, profiles: Sequence[Mapping[str, Any]], modes: Sequence[str], sizes: Sequence[int]
    ) -> List[Dict[str, Any]]:
        """Whether each combination has passed the data check in this state: ``[{profile, mode, status, why}]``.

        ``status``: ``passed``, ``failed`` or ``open``.
        """
        records = datacheck.records_of(self.root)
        groups = self.state["groups"] if self.state else None
        out = []
        for profile, mode, extra in _combinations(profiles, modes):
            whole = {**self.environment, **_texts(profile), **extra}
            status, why = datacheck.outcome(
                records, whole, groups, sizes, self.backend, self.graph and self.backend == "nccl"
            )
            out.append({"profile": profile["name"], "mode": mode, "status": status, "why": why})
        return out

    def busy(self) -> Optional[Dict[str, Any]]:
        """Somebody else's processes on the GPUs, as a diagnosis; they are named and left alone."""
        if not self.require_idle or self.backend != "nccl":
            return None
        running = samples.processes(self.nvidia_smi) or []
        if not running:
            held = self._held_by_nobody()
            return held and {
                "what": f"the GPUs are busy with processes that cannot be seen from here: {held}",
                "ranks": [],
                "missing": [],
                "remedy": "look on the machine below this container; Plumbline does not end what it has not started",
                "processes": [],
            }
        named = "; ".join(f"pid {p['pid']} ({p['name']}) on GPU {p['gpu']}, {p['memory_mib']} MiB" for p in running)
        return {
            "what": f"the GPUs are busy with processes that are not this sweep's: {named}",
            "ranks": [],
            "missing": [],
            "remedy": "wait for them or stop them yourself; Plumbline does not end what it has not started",
            "processes": running,
        }

    def _held_by_nobody(self) -> Any:
        """Memory in use though no process is shown, in words, or None. What has just ended is given time to let go."""
        until = time.monotonic() + SETTLE_S
        while True:
            held = {gpu: mib for gpu, mib in samples.memory_in_use(self.nvidia_smi).items() if mib > IDLE_MIB}
            if not held:
                return None
            if time.monotonic() >= until:
                return ", ".join(f"{mib:.0f} MiB on GPU {gpu}" for gpu, mib in held.items())
            time.sleep(0.5)

    def _base(self, work: Mapping[str, Any]) -> Dict[str, Any]:
        return {
            "schema": SCHEMA,
            "sweep": self.sweep,
            "host": self.host,
            "at": now(),
            "key": work["key"],
            "profile": work["profile"],
            "variables": work["variables"],
            "mode": work["mode"],
            "world": self.world,
            "backend": self.backend,
            **self._ran_in(work),
        }

    def _ran_in(self, work: Mapping[str, Any]) -> Dict[str, Any]:
        """NCCL variables and state; those of an execution that was killed are its own (``work.json``)."""
        if "nccl_environment" in work:
            return {"nccl_environment": work["nccl_environment"], "state": work["state"]}
        whole = {**self.environment, **work["variables"], **work["extra"]}
        return {"nccl_environment": datacheck.settings(whole), "state": self.state}

    def _append(self, record: Mapping[str, Any]) -> None:
        append_line(self.folder / "results.jsonl", record)

    def _outcome(self, work: Mapping[str, Any], status: str, diagnosis: Mapping[str, Any]) -> Dict[str, Any]:
        self._append({**self._base(work), "bytes": None, "status": status, "diagnosis": dict(diagnosis)})
        return {"profile": work["profile"], "mode": work["mode"], "status": status, "diagnosis": dict(diagnosis)}

    def _one(self, work: Mapping[str, Any]) -> Dict[str, Any]:
        environment = {**self.environment, **work["variables"], **work["extra"]}
        found_algorithms = self._algorithms(work, environment)
        place = self.folder / f"run-{work['key']}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        write_json(place / "work.json", {**work, "algorithms": found_algorithms, **self._ran_in(work)})
        done = collective.run(
            python=self.python,
            world=self.world,
            sizes=work["sizes"],
            folder=place / "ranks",
            environment=environment,
            backend=self.backend,
            dtype=self.dtype,
            graph=self.graph,
            limit_s=self.limit_s,
            iterations=self.iterations,
            fault=self.fault,
        )
        self._record(work, done, found_algorithms)
        if done["status"] == "hang" and self.after_hang is not None:
            done["diagnosis"]["what"] += f"; this host: {self.after_hang()}"
        if done["status"] in ("hang", "crash"):
            outcome = self._outcome(work, done["status"], done["diagnosis"])
        else:
            outcome = {
                "profile": work["profile"],
                "mode": work["mode"],
                "status": done["status"],
                "diagnosis": done["diagnosis"],
            }
        shutil.rmtree(place)
        return outcome

    def _record(self, work: Mapping[str, Any], done: Mapping[str, Any], algorithms: Mapping[str, Any]) -> None:
        facts = done["facts"]
        for row in done["results"]:
            wrong = row["wrong"] or row["wrong_in_graph"]
            chosen = algorithms.get(str(row["bytes"]), {})
            self._append(
                {
                    **self._base(work),
                    **row,
                    "status": "wrong_data" if wrong else "ok",
                    "algo": chosen.get("algo"),
                    "proto": chosen.get("proto"),
                    "channels": chosen.get("channels"),
                    "device": facts.get("device"),
                    "nccl": facts.get("nccl"),
                    "torch": facts.get("torch"),
                    "fault": facts.get("fault"),
                }
            )

    def _algorithms(self, work: Mapping[str, Any], environment: Mapping[str, str]) -> Dict[str, Any]:
        """What NCCL chooses by size, from a run of its own with debug output (which costs time): ``{bytes: {algo,
        proto, channels}}``.
        """
        if not self.algorithms or self.backend != "nccl":
            return {}
        place = self.folder / f"debug-{work['key']}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        collective.run(
            python=self.python,
            world=self.world,
            sizes=work["sizes"],
            folder=place / "ranks",
            backend=self.backend,
            environment={**environment, **debug_environment(str(place))},
            graph=False,
            limit_s=self.limit_s,
            iterations=1,
        )
        rows = log.merge([log.parse(p.read_text(errors="replace")) for p in sorted(place.glob("nccl.*.log"))])
        found = {}
        for process in rows["processes"]:
            for row in process["tuning"]:
                if row["function"] in (None, "AllReduce"):
                    found[str(row["bytes"])] = {k: row[k] for k in ("algo", "proto", "channels")}
        shutil.rmtree(place)
        return found

    def harvest(self) -> None:
        """Record what an execution that was killed had finished."""
        have = {(r["key"], r["bytes"]) for r in read(self.root, self.sweep)}
        for place in sorted(self.folder.glob("run-*")):
            work = _load(place / "work.json")
            if work is None:
                shutil.rmtree(place)
                continue
            done = collective.harvest(place / "ranks", self.world)
            done["results"] = [row for row in done["results"] if (work["key"], row["bytes"]) not in have]
            self._record(work, done, work["algorithms"])
            shutil.rmtree(place)
        for place in sorted(self.folder.glob("debug-*")):
            shutil.rmtree(place)


def _load(path: Path) -> Optional[Dict[str, Any]]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "key" in found else None


def gpus(nvidia_smi: str = "nvidia-smi") -> int:
    """How many GPUs this host has, by nvidia-smi; 0 without one."""
    text = samples.ask([nvidia_smi, "--query-gpu=index", "--format=csv,noheader"])
    return len([line for line in (text or "").split("\n") if line.strip().isdigit()])
