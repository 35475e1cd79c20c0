"""Who used the machine's CPUs in the window: the server, this client, or somebody else. proc_stat(5),
proc_pid_stat(5)."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Dict, Iterable, NamedTuple, Optional, Tuple

_TICKS = os.sysconf("SC_CLK_TCK")


class Use(NamedTuple):
    """A reading: seconds of CPU used by the whole machine since its start, by this process, by each server process."""

    at: float
    machine: float
    own: float
    server: Dict[Tuple[int, int], float]


def read(server: Iterable[int]) -> Optional[Use]:
    """Read now. ``server``: its processes. None where there is no /proc."""
    try:
        first = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    except OSError:
        return None
    # user nice system idle iowait irq softirq steal: what the hypervisor took is somebody else's as well.
    busy = sum(int(first[i]) for i in (1, 2, 3, 6, 7, 8) if i < len(first)) / _TICKS
    own = os.times()
    return Use(time.monotonic(), busy, own.user + own.system, {k: v for k, v in map(_process, server) if v is not None})


def _process(pid: int) -> Tuple[Tuple[int, int], Optional[float]]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return (pid, 0), None
    fields = text[text.rindex(")") + 2 :].split()
    return (pid, int(fields[19])), (int(fields[11]) + int(fields[12])) / _TICKS


def shares(before: Optional[Use], after: Optional[Use]) -> Dict[str, Optional[float]]:
    """``{server, client, foreign}`` as shares of all CPUs' time between two readings (null: unknown).

    Where the server's processes are not known, nothing can be called foreign.
    """
    if before is None or after is None or after.at <= before.at:
        return {"server": None, "client": None, "foreign": None}
    whole = (after.at - before.at) * (os.cpu_count() or 1)
    server = sum(used - before.server.get(process, 0.0) for process, used in after.server.items())
    own = after.own - before.own
    if not before.server:
        return {"server": None, "client": own / whole, "foreign": None}
    foreign = max(0.0, after.machine - before.machine - own - server)
    return {"server": server / whole, "client": own / whole, "foreign": min(1.0, foreign / whole)}
