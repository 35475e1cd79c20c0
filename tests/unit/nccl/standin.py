"""Worker processes that read their environment as NCCL 2.28 does, and log it in NCCL's words. Not a mock of
Plumbline: the other side.

    python standin.py --ranks N [--etc FILE] [--without RANK] [--late NAME=VALUE,...] [--hold SECONDS]

Workers are spawned, as SGLang spawns them. In each the first read of a variable loads the conf files (NCCL_CONF_FILE
or ~/.nccl.conf, then --etc in place of /etc/nccl.conf) into the environment without overwriting, numbers are read as
strtoll does and cached, the rest at each communicator. ``--without`` clears the profile's variables in one rank;
``--late`` sets variables after the first communicator. ``--hold`` keeps the workers alive, so that /proc/PID/environ
can be read.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
import time
from pathlib import Path

LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
PROTOCOLS = ("ll", "ll128", "simple")
ALGORITHMS = ("tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")


def load_conf(path: str) -> None:
    if not path or not Path(path).exists():
        return
    with open(path) as f:
        for line in f:
            line = line.rstrip("\n")
            if not line.startswith("#") and "=" in line:
                name, value = line.split("=", 1)
                os.environ.setdefault(name, value)


def strtoll(text: str) -> int:
    found = re.match(r"\s*([-+]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9]\d*)", text)
    if not found:
        return 0
    digits = found.group(2)
    base = 16 if digits.lower().startswith("0x") else 8 if digits.startswith("0") and len(digits) > 1 else 10
    return int(digits, base) * (-1 if found.group(1) == "-" else 1)


class Nccl:
    def __init__(self, rank: int, ranks: int, etc: str) -> None:
        self.rank, self.ranks, self.cache = rank, ranks, {}
        path = os.environ.get("NCCL_DEBUG_FILE", "").replace("%p", str(os.getpid()))
        wanted = path and os.environ.get("NCCL_DEBUG") == "INFO"
        self.log = os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY), "w") if wanted else None
        user = os.environ.get("NCCL_CONF_FILE") or f"{os.environ.get('HOME', '')}/.nccl.conf"
        load_conf(user)
        load_conf(etc)

    def say(self, text: str) -> None:
        if self.log:
            self.log.write(f"node-a:{os.getpid()}:{os.getpid()} [{self.rank}] NCCL INFO {text}\n")
            self.log.flush()

    def number(self, name: str) -> None:
        if name not in self.cache:
            text = os.environ.get(name, "")
            self.cache[name] = strtoll(text) if text else None
            if text:
                self.say(f"{name} set by environment to {self.cache[name]}.")
                if name == "NCCL_NTHREADS" and self.cache[name] % 32:
                    self.say(f"Invalid NCCL_NTHREADS {self.cache[name]} (must be a multiple of 32)")

    def words(self, name: str, allowed: tuple) -> None:
        text = os.environ.get(name)
        if text is None:
            return
        self.say(f"{name} set by environment to {text}")
        for token in text.lstrip("^").split(","):
            if token.lower() not in allowed:
                if self.log:
                    self.log.write(
                        f"\n[2026-01-01 10:00:00] node-a:{os.getpid()}:{os.getpid()} [{self.rank}] graph/tuning.cc:104 "
                        f'NCCL WARN Unrecognized element token "{token}" when parsing "{text}"\n'
                    )
                    self.log.flush()
                sys.exit(3)

    def communicator(self, number: int) -> None:
        head = (
            f"ncclCommInitRankConfig comm 0x{number + 16:x} rank {self.rank} nranks {self.ranks} cudaDev {self.rank}"
        )
        head += f" nvmlDev {self.rank} busId {self.rank + 6}0 commId 0x1"
        if number == 0:
            self.say("NCCL version 2.28.9+cuda13.0")
        self.say(f"{head} - Init START")
        if number == 0:
            level = os.environ.get("NCCL_P2P_LEVEL")
            if os.environ.get("NCCL_P2P_DISABLE") == "1":
                self.say("NCCL_P2P_DISABLE set by environment to 1")
            elif level in LEVELS:
                self.say(f"NCCL_P2P_LEVEL set by environment to {level}")
        for name in ("NCCL_NVLS_ENABLE", "NCCL_MAX_NCHANNELS", "NCCL_BUFFSIZE", "NCCL_NTHREADS"):
            self.number(name)
        self.words("NCCL_PROTO", PROTOCOLS)
        self.words("NCCL_ALGO", ALGORITHMS)
        channels = min(24, self.cache.get("NCCL_MAX_NCHANNELS") or 24)
        self.say(
            f"{channels} coll channels, {channels} collnet channels, 0 nvls channels, "
            f"{channels} p2p channels, 2 p2p channels per peer"
        )
        self.say(f"{head} - Init COMPLETE")
        peer = (self.rank + 1) % self.ranks
        self.say(f"Channel 00/0 : {self.rank}[{self.rank}] -> {peer}[{peer}] via P2P/IPC")


def worker(rank: int, ranks: int, etc: str, without: int, late: str, hold: float) -> None:
    if rank == without:
        for name in [n for n in os.environ if n.startswith("NCCL_") and not n.startswith("NCCL_DEBUG")]:
            del os.environ[name]
    nccl = Nccl(rank, ranks, etc)
    nccl.communicator(0)
    if late:
        os.environ.update(pair.split("=", 1) for pair in late.split(";"))
        nccl.communicator(1)
    time.sleep(hold)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--etc", default="")
    parser.add_argument("--without", type=int, default=-1)
    parser.add_argument("--late", default="")
    parser.add_argument("--hold", type=float, default=0.0)
    a = parser.parse_args()
    # What SGLang puts into the environment before its workers start.
    os.environ.setdefault("NCCL_CUMEM_ENABLE", "0")
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=worker, args=(r, a.ranks, a.etc, a.without, a.late, a.hold)) for r in range(a.ranks)
    ]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    return max(w.exitcode or 0 for w in workers)


if __name__ == "__main__":
    sys.exit(main())
