"""Checks of what runs: servers that nobody looks after any more, and ports that are taken."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Dict, List, Mapping, Set

from ..server import boots
from ..server import ports as listening
from ..state.context import Context
from .facts import Facts
from .finding import Finding, finding

_SERVER = re.compile(r"sglang::|sglang\.launch_server|/sglang\0serve")


def _cgroup(context: Context, pid: int) -> str:
    return context.text(f"/proc/{pid}/cgroup").strip().rpartition(":")[2]


def _parent(context: Context, pid: int) -> int:
    fields = context.text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def _ours(context: Context, expected: Mapping[str, Any]) -> Set[int]:
    """Processes of boots that run under a supervisor, and of the unit."""
    root, out = str(expected.get("root") or ""), set()
    for boot in boots.known(root) if root and str(context.sysroot) == "/" else []:
        status = boots.status(root, boot)
        if status["state"] == "running" and status["pids"]:
            out.update(boots.tree(status["pids"]))
            out.add(status["pids"]["supervisor"])
    unit = str(expected.get("unit") or "")
    if unit:
        out.update(int(p) for p in context.names("/proc") if p.isdigit() and f"/{unit}" in _cgroup(context, int(p)))
    return out


def simulated_elsewhere(context: Context, expected: Mapping[str, Any], pid: int) -> bool:
    """Whether a process is the simulated server of another root's boot; the log that it writes to says which.

    Simulated hosts share a machine, and no GPU: what one of them runs is nothing that another has to mend.
    """
    try:
        log = Path(context.path(f"/proc/{pid}/fd/1")).readlink()
        root = log.parents[2]  # ROOT/boots/ID/server.log
        environment = json.loads(context.text(log.with_name("spec.json")))["environment"]
    except (OSError, ValueError, LookupError):
        return False  # no boot's, or another user's
    return "PLUMBLINE_SIMULATOR_PHYSICS" in environment and root != Path(str(expected.get("root") or "/")).resolve()


def orphans(context: Context, expected: Mapping[str, Any], _facts: Facts) -> List[Finding]:
    """SGLang's processes whose parent is gone: they hold GPU memory and the port for hours."""
    found: Dict[int, str] = {}
    for entry in context.names("/proc"):
        if entry.isdigit():
            command = context.text(f"/proc/{entry}/cmdline")
            if _SERVER.search(command) and _parent(context, int(entry)) == 1:
                found[int(entry)] = command.replace("\0", " ").strip()[:80]
    known = _ours(context, expected) if found else set()
    known |= {pid for pid in found if simulated_elsewhere(context, expected, pid)}
    lost = {pid: command for pid, command in found.items() if pid not in known}
    said = "; ".join(
        f"pid {pid} ({command}) in cgroup {_cgroup(context, pid) or '?'}" for pid, command in sorted(lost.items())
    )
    return finding(
        not lost,
        "no server process has lost its parent",
        said or "none",
        "none",
        f"ansible-playbook playbooks/stop.yml; look at what is left, then: sudo kill {' '.join(map(str, sorted(lost)))}"
        if lost
        else "ansible-playbook playbooks/stop.yml",
    )


def ports(context: Context, expected: Mapping[str, Any], _facts: Facts) -> List[Finding]:
    """The ports of servers to come are free, or held by a server of ours."""
    out: List[Finding] = []
    if str(context.sysroot) != "/":
        return out
    for port in expected.get("ports") or []:
        owners = listening.owners(int(port))
        if owners is None:
            held = "a process that this user may not look into"
        else:
            foreign = owners - _ours(context, expected) if owners else set()
            held = ", ".join(
                f"pid {p}: {context.text(f'/proc/{p}/cmdline').replace(chr(0), ' ').strip()[:80]}"
                for p in sorted(foreign)
            )
        out += finding(
            not held,
            f"port {port} is free for the server",
            held or "free",
            "free, or our own server",
            f"stop it (`sudo ss -ltnp sport = :{port}` names it), or choose another sglang_server_port",
        )
    return out
