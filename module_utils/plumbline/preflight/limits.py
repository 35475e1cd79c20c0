"""Checks of shared memory, limits and the environment that a server will get."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Mapping, Optional

from ..state.context import Context
from .facts import Facts
from .finding import Finding, cannot, finding
from .processes import simulated_elsewhere


def nccl_ib(_context: Context, expected: Mapping[str, Any], facts: Facts) -> List[Finding]:
    """On a host that serves alone NCCL needs no InfiniBand, and looking for it has crashed it."""
    environment: Mapping[str, Any] = expected.get("nccl_environment") or {}
    if not expected.get("single_node") or not (facts.gpus > 1 or environment):
        return []
    value = environment.get("NCCL_IB_DISABLE")
    return finding(
        str(value) == "1",
        "NCCL does not look for InfiniBand on a host that serves alone",
        "not set" if value is None else value,
        "NCCL_IB_DISABLE=1",
        "put NCCL_IB_DISABLE: 1 into the NCCL profile",
        "warning",
    )


def shm(context: Context, expected: Mapping[str, Any], facts: Facts) -> List[Finding]:
    """/dev/shm as it is seen here, inside the container: NCCL's shared memory transport lives in it."""
    wanted = int(expected.get("shm_mib") or 0)
    if not wanted:
        return []
    try:
        found = os.statvfs(context.path("/dev/shm"))
    except OSError as error:
        return cannot("/dev/shm", error.strerror, "mount a tmpfs there")
    mib = found.f_blocks * found.f_frsize >> 20
    remedy = (
        "start the container with --shm-size or --ipc=host (LXC: lxc.mount.entry of a tmpfs)"
        if facts.kind == "container"
        else f"gpu_host_shm_size: {wanted}M, then site.yml; at once: sudo mount -o remount,size={wanted}M /dev/shm"
    )
    return finding(mib >= wanted, "/dev/shm is large enough for NCCL", f"{mib} MiB", f"at least {wanted} MiB", remedy)


def _limit(context: Context, pid: str, name: str) -> Optional[float]:
    found = re.search(rf"(?m)^{name}\s+(\S+)", context.text(f"/proc/{pid}/limits"))
    if not found:
        return None
    return float("inf") if found.group(1) == "unlimited" else float(found.group(1))


def _subjects(context: Context, expected: Mapping[str, Any]) -> Dict[str, str]:
    """Whose limits count: the server's if it runs, else this session's; and dockerd's, which containers inherit."""
    out: Dict[str, str] = {}
    for pid in context.names("/proc"):
        if not pid.isdigit():
            continue
        command = context.text(f"/proc/{pid}/cmdline")
        if "sglang.launch_server" in command or "sglang\0serve" in command:
            if not simulated_elsewhere(context, expected, int(pid)):
                out[f"the server (pid {pid})"] = pid
        elif re.match(r"(?:/\S*/)?(dockerd|containerd)(\0|$)", command):
            out[f"{command.split(chr(0))[0].rpartition('/')[2]} (pid {pid})"] = pid
    if not any(name.startswith("the server") for name in out):
        out["a new session"] = "self"
    return out


def _least(context: Context, expected: Mapping[str, Any], name: str, wanted: float) -> List[str]:
    out = []
    for subject, pid in _subjects(context, expected).items():
        limit = _limit(context, pid, name)
        if limit is not None and limit < wanted:
            out.append(f"{subject}: {limit:.0f}")
    return out


def memlock(context: Context, expected: Mapping[str, Any], facts: Facts) -> List[Finding]:
    """Pinned memory counts against this limit; the small default makes NCCL's start fail."""
    asked = expected.get("memlock")
    if asked in (None, ""):
        return []
    wanted = float("inf") if str(asked) in ("unlimited", "infinity") else float(asked)
    low = _least(context, expected, "Max locked memory", wanted)
    return finding(
        not low,
        "memory may be locked without a limit" if wanted == float("inf") else "enough memory may be locked",
        "; ".join(low) or "enough",
        f"{asked} bytes" if wanted < float("inf") else "unlimited",
        "start the container with --ulimit memlock=-1"
        if facts.kind == "container"
        else "run site.yml and log in again (role gpu_host); docker: LimitMEMLOCK=infinity in its unit, restart",
    )


def nofile(context: Context, expected: Mapping[str, Any], facts: Facts) -> List[Finding]:
    wanted = int(expected.get("nofile") or 0)
    if not wanted:
        return []
    low = _least(context, expected, "Max open files", wanted)
    return finding(
        not low,
        "enough files may be open",
        "; ".join(low) or "enough",
        f"at least {wanted}",
        "start the container with --ulimit nofile"
        if facts.kind == "container"
        else "run site.yml and log in again (role gpu_host)",
        "warning",
    )
