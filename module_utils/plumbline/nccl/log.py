"""NCCL's debug log (NCCL_DEBUG=INFO), of all versions from 2.18 on, from one file per process or from a mixed
journal.

Formats: NVIDIA/nccl ``src/debug.cc`` (prefixes), ``src/init.cc``, ``src/enqueue.cc`` (tuning lines),
``src/graph/search.cc`` (patterns), ``src/transport/*.cc`` (channels). A line is ``host:pid:tid [dev] NCCL INFO
text`` or, for a warning, ``[time] host:pid:tid [dev] file:line (function) NCCL WARN text``; a time stamp in any
format may stand before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Dict, List, Optional, Set, Tuple

_PREFIX = re.compile(
    r"(?P<host>[^\s:\[\]]+):(?P<pid>\d+):(?P<tid>\d+) (?:\[(?P<dev>\d+)\] )?"
    r"(?:(?P<file>[\w./+-]+):(?P<line>\d+) (?:\((?P<func>[^)]*)\) )?)?NCCL (?P<level>INFO|WARN|ABORT|TRACE) ?"
)
_VERSION = re.compile(r"NCCL version (\d+\.\d+(?:\.\d+)?(?:\+\S+)?)")
# Numbers end with a full stop, texts do not: "NCCL_BUFFSIZE set by environment to 4194304.", "NCCL_PROTO set by
# environment to LL".
_ENV = re.compile(r"(\w+) set by environment to (.*)$")
_COMM = re.compile(
    r"(?:\[Rank \d+\] )?(?:(?P<function>\w+) )?comm (?P<comm>0x[0-9a-fA-F]+) "
    r"rank (?P<rank>\d+) n[rR]anks (?P<nranks>\d+)"
    r"(?: cudaDev (?P<dev>\d+))?(?:.*? busId (?P<bus>\w+))?"
    r".* - (?P<what>Init START|Init COMPLETE|Abort COMPLETE|Destroy COMPLETE)"
)
_LOCAL = re.compile(r"comm (0x[0-9a-fA-F]+) rank (\d+) nRanks (\d+) nNodes (\d+) localRanks (\d+) localRank (\d+)")
_CHANNELS = re.compile(
    r"(\d+) coll channels, (?:(\d+) collnet channels, )?(?:(\d+) nvls channels, )?(\d+) p2p channels"
    r"(?:, (\d+) p2p channels per peer)?"
)
_RING_CHANNEL = re.compile(r"Channel (\d+)/(\d+) :((?: +\d+)+)\s*$")
_TRANSPORT = re.compile(
    r"Channel (\d+)(?:/\d+)? : (\d+)\[[\da-f]+\] -> (\d+)\[[\da-f]+\](?: \[(?:send|receive)\])? via (\S+(?: pointer)?)"
)
_TUNING = re.compile(
    r"(?:(\w+): )?(\d+) Bytes -> Algo (\w+) proto (\w+)(?: time ([\d.]+))?(?: channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\})?"
)
_PATTERN = re.compile(
    r"Pattern (\d+), crossNic (\d+), nChannels (\d+), bw ([\d.]+)/([\d.]+), type (\w+)/(\w+), sameChannels (\d)"
)
_P2P_TYPE = re.compile(
    r"Check P2P Type (?:isAllDirectP2p|intraNodeP2pSupport) (\d) directMode (\d)(?: isAllCudaP2p (\d))?"
)
_P2P_CHUNK = re.compile(r"P2P Chunksize set to (-?\d+)")
_MATRIX_HEAD = re.compile(r"\s*Function \|(.*)\|(.*)$")
_MATRIX_ROW = re.compile(r"\s*(Broadcast|Reduce|AllGather|ReduceScatter|AllReduce) \|([ \d]+)\|([ \d]+)$")
_NOT_TAKEN = re.compile(
    r"(Invalid value .* for (NCCL_\w+), using default|Invalid (NCCL_\w+) |User asked for a (minimum|maximum) of )"
)
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")
_ROW = ("function", "bytes", "algo", "proto", "channels", "count")


def _lines(text: str) -> Iterator[Tuple[Optional[re.Match[str]], str]]:
    """(prefix match or None, text after it). Processes that share a file break into each other's lines: each prefix
    begins anew.
    """
    hosts = {mark.group("host") for mark in _PREFIX.finditer(text) if "/" not in mark.group("host")}
    for line in text.replace("\r", "").split("\n"):
        marks = list(_PREFIX.finditer(line))
        if not marks:
            yield None, line
        for number, mark in enumerate(marks):
            end = len(line)
            if number + 1 < len(marks):
                following = marks[number + 1]
                end = following.start() + _glued(following.group("host"), hosts)
            yield mark, line[mark.end() : end]


def _glued(host: str, hosts: Set[str]) -> int:
    """How many characters of what looks like a host are the tail of the line that was broken into
    ("P2P/IPCnode-a").
    """
    return max((len(host) - len(known) for known in hosts if host != known and host.endswith(known)), default=0)


def _new_process(host: str, pid: int) -> Dict[str, Any]:
    process: Dict[str, Any] = {"host": host, "pid": pid, "version": None}
    for name in ("devices", "ranks", "env", "communicators", "tuning", "patterns", "warnings", "notes"):
        process[name] = []
    return {
        **process,
        "transports": {},
        "p2p_type": None,
        "p2p_chunk_bytes": None,
        "enabled": {},
        "ring_channels": None,
    }


def _name(value: str, names: Tuple[str, ...]) -> str:
    """Old versions print algorithm and protocol as numbers."""
    if value.isdigit():
        return names[int(value)] if int(value) < len(names) else value
    return value.upper()


class _Reader:
    """State of one pass over a log."""

    def __init__(self) -> None:
        self.processes: Dict[Tuple[str, int], Dict[str, Any]] = {}
        self.version: Optional[str] = None
        self.tuning: Dict[Tuple[Any, ...], Dict[str, Any]] = {}
        self.matrix_for: Optional[Dict[str, Any]] = None
        self.matrix_heads: Optional[Tuple[List[str], List[str]]] = None
        self.current: Dict[Tuple[int, int], Dict[str, Any]] = {}

    def unmarked(self, text: str) -> None:
        """A line without a prefix: the version banner, or a row of the table of what is enabled."""
        found = _VERSION.search(text)
        if found and self.version is None:
            self.version = found.group(1)
        if self.matrix_for is None:
            return
        head, row = _MATRIX_HEAD.match(text), _MATRIX_ROW.match(text)
        if head:
            self.matrix_heads = (head.group(1).split(), head.group(2).split())
        elif row and self.matrix_heads:
            on = [
                [name for name, flag in zip(names, row.group(part).split()) if flag != "0"]
                for part, names in zip((2, 3), self.matrix_heads)
            ]
            self.matrix_for["enabled"][row.group(1)] = {"protocols": on[0], "algorithms": on[1]}
        elif text.strip():
            self.matrix_for = None

    def marked(self, mark: re.Match[str], text: str) -> None:
        host, pid, tid = mark.group("host"), int(mark.group("pid")), int(mark.group("tid"))
        if "/" in host:  # glued to the tail of another line
            host = next((p["host"] for p in self.processes.values() if host.endswith(p["host"])), host)
        process = self._process(host, pid, text)
        device = int(mark.group("dev")) if mark.group("dev") is not None else None
        if device is not None and device not in process["devices"]:
            process["devices"].append(device)
        self.matrix_for = process if "Algo Matrix" in text else None
        if mark.group("level") in ("WARN", "ABORT"):
            process["warnings"].append(
                {
                    "text": text,
                    "file": mark.group("file"),
                    "line": int(mark.group("line") or 0),
                    "function": mark.group("func"),
                }
            )
            return
        self._info(process, tid, text)

    def _process(self, host: str, pid: int, text: str) -> Dict[str, Any]:
        """By pid: one machine may print its short and its full name. Another host with that pid shows by a
        communicator of its own.
        """
        first = self.processes.get(("", pid))
        if first is None:
            return self.processes.setdefault(("", pid), _new_process(host, pid))
        if host != first["host"] and (host, pid) not in self.processes and text.endswith("Init START"):
            self.processes[(host, pid)] = _new_process(host, pid)
        return self.processes.get((host, pid), first)

    def _info(self, process: Dict[str, Any], tid: int, text: str) -> None:
        done = sum(1 for c in process["communicators"] if c["complete"] and c["nranks"] > 1)
        found = _ENV.match(text)
        if found:
            value = found.group(2)
            number = re.fullmatch(r"(-?\d+)\.", value)
            process["env"].append(
                {"name": found.group(1), "value": number.group(1) if number else value, "after_communicators": done}
            )
            return
        found = _COMM.match(text)
        if found:
            self._communicator(process, tid, found)
            return
        if " Bytes -> Algo " in text:
            found = _TUNING.match(text)
            if found:
                self._tuning(process, found)
            return
        found = _TRANSPORT.match(text)
        if found:
            channel, source, peer, via = found.groups()
            per_peer = process["transports"].setdefault(f"{source}->{peer}", {})
            via = re.sub(r"^(NET/\w+|COLLNET/\w+).*", r"\1", via.rstrip("*"))
            per_peer.setdefault(via, set()).add(int(channel))
            return
        self._rest(process, tid, text)

    def _rest(self, process: Dict[str, Any], tid: int, text: str) -> None:
        found = _CHANNELS.match(text)
        if found:
            counts = [int(n) if n is not None else None for n in found.groups()]
            entry = dict(zip(("coll", "collnet", "nvls", "p2p", "p2p_per_peer"), counts))
            current = self.current.get((process["pid"], tid))
            if current is None:
                current = self._add_communicator(process, tid, None)
            current["channels"] = entry
            return
        found = _PATTERN.match(text)
        if found:
            g = found.groups()
            pattern = {
                "pattern": int(g[0]),
                "cross_nic": int(g[1]),
                "channels": int(g[2]),
                "bw_intra": float(g[3]),
                "bw_inter": float(g[4]),
                "type_intra": g[5],
                "type_inter": g[6],
                "same_channels": g[7] == "1",
            }
            if pattern not in process["patterns"]:
                process["patterns"].append(pattern)
            return
        found = _LOCAL.match(text)
        if found:
            current = self.current.get((process["pid"], tid))
            if current is None or current["comm"] != found.group(1):
                current = self._add_communicator(process, tid, found.group(1))
            current.update(
                rank=int(found.group(2)),
                nranks=int(found.group(3)),
                nodes=int(found.group(4)),
                local_ranks=int(found.group(5)),
            )
            return
        found = _RING_CHANNEL.match(text)
        if found:
            process["ring_channels"] = max(process["ring_channels"] or 0, int(found.group(2)))
            return
        found = _P2P_TYPE.match(text)
        if found:
            process["p2p_type"] = {
                "all_direct": found.group(1) == "1",
                "direct_mode": found.group(2) == "1",
                "all_cuda": None if found.group(3) is None else found.group(3) == "1",
            }
            return
        found = _P2P_CHUNK.match(text)
        if found:
            process["p2p_chunk_bytes"] = int(found.group(1))
            return
        found = _VERSION.match(text)
        if found:
            process["version"] = found.group(1)
            self.version = self.version or found.group(1)
            return
        if _NOT_TAKEN.match(text) and text not in process["notes"]:
            process["notes"].append(text)

    def _add_communicator(self, process: Dict[str, Any], tid: int, comm: Optional[str]) -> Dict[str, Any]:
        entry: Dict[str, Any] = {
            "comm": comm,
            "function": None,
            "rank": None,
            "nranks": 0,
            "device": None,
            "bus": None,
            "complete": False,
            "destroyed": False,
            "channels": None,
            "nodes": None,
            "local_ranks": None,
        }
        process["communicators"].append(entry)
        self.current[(process["pid"], tid)] = entry
        return entry

    def _communicator(self, process: Dict[str, Any], tid: int, found: re.Match[str]) -> None:
        what, comm = found.group("what"), found.group("comm")
        entries = [c for c in process["communicators"] if c["comm"] == comm and not c["destroyed"]]
        if what == "Destroy COMPLETE" or what == "Abort COMPLETE":
            for entry in entries:
                entry["destroyed"] = True
            return
        entry = (
            entries[-1]
            if entries and not (what == "Init START" and entries[-1]["complete"])
            else self._add_communicator(process, tid, comm)
        )
        rank = int(found.group("rank"))
        entry.update(rank=rank, nranks=int(found.group("nranks")), bus=found.group("bus"))
        entry["function"] = found.group("function") or entry["function"]
        if found.group("dev") is not None:
            entry["device"] = int(found.group("dev"))
        if rank not in process["ranks"]:
            process["ranks"].append(rank)
        self.current[(process["pid"], tid)] = entry
        entry["complete"] = entry["complete"] or what == "Init COMPLETE"

    def _tuning(self, process: Dict[str, Any], found: re.Match[str]) -> None:
        function, size, algo, proto, time_us, low, high = found.groups()
        row = {
            "function": function,
            "bytes": int(size),
            "algo": _name(algo, _ALGORITHMS),
            "proto": _name(proto, _PROTOCOLS),
            "channels": int(high) - int(low) + 1 if high is not None else None,
        }
        key = (process["host"], process["pid"], *row.values())
        if key in self.tuning:
            self.tuning[key]["count"] += 1
            return
        self.tuning[key] = {**row, "time_us": float(time_us) if time_us else None, "count": 1}
        process["tuning"].append(self.tuning[key])


def parse(text: str) -> Dict[str, Any]:
    """A debug log as data: ``{version, processes: [...]}``.

    A process: host, pid, version, devices, ranks; ``env`` [{name, value, after_communicators: how many communicators
    of more than one rank were complete before the line}]; ``communicators`` [{comm, function, rank, nranks, device,
    complete, channels, nodes, ...}]; ``transports`` {"0->1": {"P2P/IPC": number of channels}}; ``tuning``
    [{function, bytes, algo, proto, channels, time_us, count}]; ``patterns``; ``warnings`` [{text, file, line,
    function}]; ``notes`` (values that NCCL says it did not take); ``p2p_type``; ``p2p_chunk_bytes``; ``enabled``
    {function: {protocols, algorithms}}; ``ring_channels``.
    """
    reader = _Reader()
    for mark, rest in _lines(text):
        if mark is None:
            reader.unmarked(rest)
        else:
            reader.marked(mark, rest)
    processes = list(reader.processes.values())
    for process in processes:
        process["version"] = process["version"] or reader.version
        for peers in process["transports"].values():
            for via, channels in peers.items():
                peers[via] = len(channels)
    return {"version": reader.version, "processes": processes}


def merge(documents: List[Dict[str, Any]]) -> Dict[str, Any]:
    """Several parsed files (one per process) as one."""
    versions = [d["version"] for d in documents if d["version"]]
    return {"version": versions[0] if versions else None, "processes": [p for d in documents for p in d["processes"]]}


def transports(document: Dict[str, Any]) -> Dict[str, int]:
    """Kinds of transport (``P2P``, ``SHM``, ``NET``) and on how many directed pairs of ranks each is used."""
    counts: Dict[str, int] = {}
    for process in document["processes"]:
        for peers in process["transports"].values():
            for kind in sorted({via.split("/")[0] for via in peers}):
                counts[kind] = counts.get(kind, 0) + 1
    return counts


def summary(document: Dict[str, Any]) -> Dict[str, Any]:
    """A short reading: {nccl, env_set, transport, transports, p2p, channels, warn, warnings, tuning, patterns,
    ranks, complete}.

    ``transport`` is the kind that all pairs share, or ``mixed``; ``p2p`` is whether every pair talks peer to peer
    (null if the log does not say).
    """
    processes = document["processes"]
    kinds = transports(document)
    p2p: Optional[bool] = None
    if kinds:
        p2p = set(kinds) == {"P2P"}
    elif any(p["p2p_type"] for p in processes):
        p2p = all(p["p2p_type"]["all_direct"] for p in processes if p["p2p_type"])
    env_set = {e["name"]: e["value"] for p in processes for e in p["env"]}
    if p2p is None and (env_set.get("NCCL_P2P_LEVEL") == "LOC" or env_set.get("NCCL_P2P_DISABLE") == "1"):
        p2p = False
    communicators = [c for p in processes for c in p["communicators"]]
    coll = [c["channels"]["coll"] for c in communicators if c["channels"]]
    rings = [p["ring_channels"] for p in processes if p["ring_channels"]]
    warnings = [w["text"] for p in processes for w in p["warnings"]]
    version = document["version"]
    return {
        "nccl": version.split("+")[0] if version else None,
        "env_set": env_set,
        "transport": None if not kinds else next(iter(kinds)) if len(kinds) == 1 else "mixed",
        "transports": kinds,
        "p2p": p2p,
        "channels": coll[0] if coll else rings[0] if rings else None,
        "warn": bool(warnings),
        "warnings": warnings,
        "notes": [n for p in processes for n in p["notes"]],
        "tuning": [{k: row[k] for k in _ROW} for p in processes for row in p["tuning"]],
        "patterns": [pattern for p in processes for pattern in p["patterns"]],
        "ranks": max([c["nranks"] for c in communicators], default=0) or None,
        "complete": sum(1 for c in communicators if c["complete"]),
    }
