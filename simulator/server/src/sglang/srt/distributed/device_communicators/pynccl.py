"""What NCCL would read and say in this process: its variables, its files, its log.

The process reads its own environment when the communicator is made, as NCCL does: process environment first, then
NCCL_CONF_FILE or ~/.nccl.conf, then /etc/nccl.conf. Lines follow those of NCCL 2.28-2.30 on a host with PCIe-only GPUs
in two sockets.
"""

from __future__ import annotations

import os
import re
import socket
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
LEGACY_LEVELS = {0: "LOC", 1: "PIX", 2: "PXB", 3: "PHB"}
PROTOCOLS, ALGORITHMS = (
    ("LL", "LL128", "Simple"),
    ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"),
)
FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
DEFAULT_SUBSYSTEMS = {"INIT", "BOOTSTRAP", "ENV"}
# Numbers that every start reads, by the stage at which NCCL first needs them.
EARLY, LATE = ("NCCL_CUMEM_ENABLE", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE"), ("NCCL_NVLS_ENABLE", "NCCL_CROSS_NIC")
MOST_CHANNELS, CHANNELS_SHM, CHANNELS_P2P = 64, 2, 4
THREADS_LL, THREADS_MOST = 512, 512
DEFAULT_BUFFER = 4194304


class NcclError(RuntimeError):
    """What pynccl raises when the communicator cannot be made."""


def read_environment() -> Dict[str, str]:
    """The variables that NCCL works with in this process, conf files included; they are set in ``os.environ``."""
    user = os.environ.get("NCCL_CONF_FILE") or f"{os.environ.get('HOME', '')}/.nccl.conf"
    for file in (user, "/etc/nccl.conf"):
        for name, value in _conf(Path(file)).items():
            os.environ.setdefault(name, value)
    return {name: value for name, value in os.environ.items() if name.startswith("NCCL_")}


def _conf(file: Path) -> Dict[str, str]:
    """KEY=VALUE lines as NCCL takes them: nothing trimmed, ``#`` a comment only at the start of a line."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in lines if not line.startswith("#"))
    found: Dict[str, str] = {}
    for name, equals, value in pairs:
        if equals and name and "\0" not in name + value:
            found.setdefault(name, value)
    return found


def number(text: str) -> int:
    """As C's strtoll with base 0: ``010`` is 8, ``0x10`` is 16, ``8x`` is 8, ``abc`` is 0."""
    match = re.match(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)", text)
    if not match:
        return 0
    digits = match.group(2)
    value = int(digits, 16) if digits[:2].lower() == "0x" else int(digits, 8 if digits.startswith("0") else 10)
    return -value if match.group(1) == "-" else value


def same_value(name: str, found: Optional[str], wanted: str) -> bool:
    """Whether NCCL takes ``found`` for ``wanted``: numbers by value, lists without case, the level as it is."""
    if found is None:
        return False
    if name in ("NCCL_PROTO", "NCCL_ALGO"):
        return found.lower() == wanted.lower()
    if re.fullmatch(r"[+-]?\d+", wanted):
        return number(found) == number(wanted)
    return found == wanted


class Communicator:
    """One rank's communicator: made in the constructor, which raises NcclError for what NCCL refuses."""

    def __init__(self, rank: int, ranks: int, version: str, environment: Dict[str, str]) -> None:
        self.rank, self.ranks, self.version, self.env = rank, ranks, version, environment
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._level = environment.get("NCCL_DEBUG", "").upper()
        self._subsystems = _subsystems(environment.get("NCCL_DEBUG_SUBSYS"))
        self._sink = self._open_sink()
        self._known: Dict[str, int] = {}
        try:
            self._start()
        finally:
            if self._sink is not None and self._sink > 2:
                os.close(self._sink)
                self._sink = None

    def _open_sink(self) -> Optional[int]:
        if not self._level or self._level == "NONE":
            return None
        name = self.env.get("NCCL_DEBUG_FILE")
        if not name:
            return 1
        name = name.replace("%h", self._host).replace("%p", str(self._pid))
        try:
            return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        except OSError:
            return 1

    def _info(self, subsystem: str, text: str, thread: int = 0) -> None:
        wanted = not subsystem or subsystem in self._subsystems or "ALL" in self._subsystems
        if self._sink is not None and self._level in ("INFO", "TRACE") and wanted:
            self._write(f"{self._host}:{self._pid}:{self._pid + thread} [{self.rank}] NCCL INFO {text}\n")

    def _warn(self, place: str, text: str) -> None:
        if self._sink is not None and self._level in ("INFO", "TRACE", "WARN"):
            stamp = time.strftime("%Y-%m-%d %H:%M:%S")
            self._write(f"\n[{stamp}] {self._host}:{self._pid}:{self._pid} [{self.rank}] {place} NCCL WARN {text}\n")

    def _write(self, text: str) -> None:
        if self._sink is not None:
            os.write(self._sink, text.encode())

    def _number(self, name: str, default: int) -> int:
        """A numeric variable: read once in the life of the process, said once."""
        if name not in self._known:
            text = self.env.get(name, "")
            self._known[name] = number(text) if text else default
            if text:
                self._info("ENV", f"{name} set by environment to {self._known[name]}.")
        return self._known[name]

    def _start(self) -> None:
        major = self.version.rsplit(".", 1)[0]
        self._info("INIT", "ENV/Plugin: Could not find: libnccl-env.so")
        self._info("INIT", "cudaDriverVersion 13000")
        self._info("INIT", f"NCCL version {self.version}+cuda13.0")
        if self.env.get("NCCL_SOCKET_IFNAME"):
            self._info("ENV", f"NCCL_SOCKET_IFNAME set by environment to {self.env['NCCL_SOCKET_IFNAME']}")
        self._info("INIT", "NET/Plugin: Could not find: libnccl-net.so")
        self._info("INIT", "NET/IB : No device found.")
        self._info("INIT", "NET/Socket : Using [0]eth0:192.0.2.10<0>")
        self._info("INIT", "Using network Socket")
        name = (
            f"ncclCommInitRank comm 0x{0x1E6C49B0 + self.rank * 4096:x} rank {self.rank} nranks {self.ranks} "
            f"cudaDev {self.rank} nvmlDev {self.rank} busId {0x16000 + self.rank * 0x11000:x} commId 0xaeeaae11534b96ea"
        )
        self._info("INIT", f"{name} - Init START")
        for variable in EARLY:
            self._number(variable, 0)
        level = self._p2p_level()
        if self.env.get("NCCL_TOPO_FILE"):
            self._info("ENV", f"NCCL_TOPO_FILE set by environment to {self.env['NCCL_TOPO_FILE']}")
        for variable in LATE:
            self._number(variable, 0)
        if self.env.get("NCCL_GRAPH_FILE"):
            self._info("ENV", f"NCCL_GRAPH_FILE set by environment to {self.env['NCCL_GRAPH_FILE']}")
        self._channels(level, major)
        self._tuning()
        self._info(
            "INIT",
            f"{self.channels} coll channels, {self.channels} collnet channels, 0 nvls channels, "
            f"{self.channels} p2p channels, {min(2, self.channels)} p2p channels per peer",
        )
        self._info("INIT", "CC Off, workFifoBytes 1048576")
        self._info("INIT", f"{name} - Init COMPLETE")
        self._info(
            "INIT",
            f"Init timings - ncclCommInitRank: rank {self.rank} nranks {self.ranks} total 0.47 (kernels 0.39, "
            "alloc 0.01, bootstrap 0.00, allgathers 0.00, topo 0.01, graphs 0.00, connections 0.05, rest 0.01)",
        )
        for size in (8192, 16384, 65536):
            self._info(
                "TUNING",
                f"AllReduce: {size} Bytes -> Algo {self.algorithm.upper()} proto {self.protocol} "
                f"channel{{Lo..Hi}}={{0..{min(1, self.channels - 1)}}}",
            )

    def _p2p_level(self) -> str:
        """The path over which P2P is still used. An unknown name is ignored without a line; PXB is the default."""
        if number(self.env.get("NCCL_P2P_DISABLE", "0")) == 1:
            self._info("", "NCCL_P2P_DISABLE set by environment to 1")
            return "LOC"
        asked = self.env.get("NCCL_P2P_LEVEL")
        if asked is None:
            return "PXB"
        level = asked if asked in LEVELS else ""
        if not level and re.match(r"\d", asked):
            level = LEGACY_LEVELS.get(number(asked), "SYS")
        if level:
            self._info("", f"NCCL_P2P_LEVEL set by environment to {level}")
        return level or "PXB"

    def _channels(self, level: str, major: str) -> None:
        """Rings over all ranks; ranks of one socket are PHB apart, the two sockets SYS."""
        after = (self.rank + 1) % self.ranks
        crosses = (self.rank < self.ranks // 2) != (after < self.ranks // 2)
        reach = LEVELS.index(level)
        here, everywhere = reach >= LEVELS.index("SYS" if crosses else "PHB"), reach >= LEVELS.index("SYS")
        self._info(
            "GRAPH",
            f"comm 0x{0x1E6C49B0 + self.rank * 4096:x} rank {self.rank} nRanks {self.ranks} nNodes 1 "
            f"localRanks {self.ranks} localRank {self.rank} MNNVL 0",
        )
        count = CHANNELS_P2P if everywhere else CHANNELS_SHM
        most = self._number("NCCL_MAX_NCHANNELS", 0)
        least = self._number("NCCL_MIN_NCHANNELS", 0)
        count = min(count, most) if most > 0 else count
        self.channels = max(1, min(max(count, least), MOST_CHANNELS))
        ring = " ".join(str(rank) for rank in range(self.ranks))
        if self.rank == 0:
            for channel in range(self.channels):
                self._info("INIT", f"Channel {channel:02d}/{self.channels:02d} : {ring}")
        before = (self.rank - 1) % self.ranks
        for channel in range(self.channels):
            self._info("GRAPH", f"Ring {channel:02d} : {before} -> {self.rank} -> {after}")
        self._number("NCCL_BUFFSIZE", DEFAULT_BUFFER)
        self._info(
            "INIT", f"P2P Chunksize set to {max(0, 131072 if self._number('NCCL_BUFFSIZE', DEFAULT_BUFFER) > 0 else 0)}"
        )
        self._info("INIT", f"Check P2P Type isAllDirectP2p {int(everywhere)} directMode 0 isAllCudaP2p 1")
        cumem = self._number("NCCL_CUMEM_ENABLE", 0)
        via, slash = ("P2P/CUMEM" if cumem else "P2P/IPC", "/0") if here else ("SHM/direct/direct", "")
        for channel in range(self.channels):
            self._info("INIT", f"Channel {channel:02d}{slash} : {self.rank}[{self.rank}] -> {after}[{after}] via {via}")
        self._info(
            "INIT",
            "Connected all rings, use ring PXN 0 GDR 1" if int(major.split(".")[1]) >= 24 else "Connected all rings",
        )
        self._info("INIT", "Connected all trees")

    def _tuning(self) -> None:
        threads = self._number("NCCL_NTHREADS", THREADS_LL)
        if threads % 32:
            self._info("GRAPH", f"Invalid NCCL_NTHREADS {threads} (must be a multiple of 32)")
        protocols = self._list("NCCL_PROTO", PROTOCOLS, 104)
        algorithms = self._list("NCCL_ALGO", ALGORITHMS, 110)
        self.protocol = next((name for name in ("LL", "Simple", "LL128") if name in protocols), "LL")
        self.algorithm = next((name for name in ("Ring", "Tree") if name in algorithms), "Ring")
        if self.rank == 0 and (self.env.get("NCCL_PROTO") or self.env.get("NCCL_ALGO")):
            self._matrix(protocols, algorithms)
        self._info("INIT", f"threadThresholds 8/8/64 | {self.ranks * 8}/8/64 | 512 | 512")

    def _matrix(self, protocols: List[str], algorithms: List[str]) -> None:
        head = (
            "     Function | "
            + " ".join(f"{name:>8}" for name in PROTOCOLS)
            + "   | "
            + " ".join(f"{name:>14}" for name in ALGORITHMS)
            + "  \n"
        )
        rows = "".join(
            f"{function:>13} | "
            + " ".join(f"{int(name in protocols):>8}" for name in PROTOCOLS)
            + "   | "
            + " ".join(f"{int(name in algorithms):>14}" for name in ALGORITHMS)
            + "  \n"
            for function in FUNCTIONS
        )
        self._info("INIT", f"Enabled NCCL Func/Proto/Algo Matrix:\n{head}{rows}")

    def _list(self, variable: str, known: Tuple[str, ...], line: int) -> List[str]:
        """What a list variable leaves enabled for AllReduce. Raises NcclError for a token that is none."""
        text = self.env.get(variable)
        if not text:
            return list(known)
        self._info("ENV", f"{variable} set by environment to {text}")
        enabled = list(known)
        for place, entry in enumerate(text.split(";")):
            prefix, colon, items = entry.rpartition(":")
            if not colon and place > 0:
                self._refuse(line, f'All entries except the first must have a prefix: "{entry}" when parsing "{text}"')
            if prefix and prefix.lower() not in [name.lower() for name in FUNCTIONS]:
                self._refuse(line, f'Unrecognized prefix token "{prefix}" when parsing "{text}"')
            inverted = items.startswith("^")
            named = []
            for token in items.lstrip("^").split(","):
                match = next((name for name in known if name.lower() == token.lower()), None)
                if match is None:
                    self._refuse(line, f'Unrecognized element token "{token}" when parsing "{text}"')
                else:
                    named.append(match)
            if not prefix or prefix.lower() == "allreduce":
                enabled = [name for name in known if (name in named) != inverted]
        return enabled

    def _refuse(self, line: int, text: str) -> None:
        self._warn(f"graph/tuning.cc:{line}", text)
        for place in ("graph/tuning.cc:422", "init.cc:1356", "init.cc:1582", "group.cc:537", "init.cc:2162"):
            self._info("INIT", f"{place} -> 5")
        raise NcclError("NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)")


def _subsystems(text: Optional[str]) -> set:
    if not text:
        return set(DEFAULT_SUBSYSTEMS)
    inverted = text.startswith("^")
    named = {name.strip().upper() for name in text.lstrip("^").split(",")}
    everything = {"INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "CALL", "PROXY", "BOOTSTRAP"}
    return everything - named if inverted else named


def in_force(environment: Dict[str, str], profile: Dict[str, Any]) -> bool:
    """Whether a rank with these variables has the whole profile."""
    return all(same_value(name, environment.get(name), str(value)) for name, value in profile.items())
