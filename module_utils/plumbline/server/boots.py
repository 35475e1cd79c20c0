"""The folders of boots: what they say, and which processes belong to one."""
from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, List, Optional, Set, Union

from .supervisor import alive, descendants, machine_id, process_start, process_stat

PathLike = Union[str, Path]
MARK = "PLUMBLINE_BOOT"  # in a server's environment: the id of its boot
#: Classes of failures that are none of the arm's: somebody stopped the server, or whoever measured it is gone.
INTERRUPTED = ("stopped", "lease_expired", "lease_lost", "controller_died")


def folder(root: PathLike, boot: str) -> Path:
    return Path(root) / "boots" / boot


def supervisor_path(root: PathLike) -> Path:
    return Path(root) / "bin" / "plumbline-supervise"


def known(root: PathLike) -> List[str]:
    """Ids of all boots of this root, oldest first."""
    path = Path(root) / "boots"
    return sorted(entry.name for entry in path.iterdir() if (entry / "spec.json").is_file()) if path.is_dir() else []


def read_json(path: Path) -> Optional[Dict[str, Any]]:
    """A JSON object, or None where there is no whole one."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def status(root: PathLike, boot: str) -> Dict[str, Any]:
    """{state, boot_dir, spec, pids: pid.json or null, exit: exit.json or null} of a boot.

    ``state``: absent, running (supervisor or server lives), ended (exit.json tells how) or lost (neither lives and
    nothing tells how it ended: the machine went down, or the supervisor was killed).
    """
    path = folder(root, boot)
    spec, pids, exit_ = (read_json(path / name) for name in ("spec.json", "pid.json", "exit.json"))
    if spec is None:
        state = "absent"
    elif pids and pids.get("machine") == machine_id() and (
            alive(pids["supervisor"], pids["supervisor_start"]) or alive(pids["server"], pids["server_start"])):
        state = "running"
    else:
        state = "ended" if exit_ else "lost"
    return {"state": state, "boot_dir": str(path), "spec": spec, "pids": pids, "exit": exit_}


def tree(pids: Dict[str, Any]) -> List[int]:
    """The living processes of a running server: the main one and everything below it or its supervisor."""
    found = [pids["server"]] if alive(pids["server"], pids["server_start"]) else []
    for parent, started in ((pids["supervisor"], pids["supervisor_start"]), (pids["server"], pids["server_start"])):
        if alive(parent, started):
            found += [pid for pid in descendants(parent) if pid not in found]
    return found


def remains(root: PathLike, boot: str) -> List[int]:
    """Living processes that belong to a boot, supervisor included, however they were left behind.

    Besides the tree: the server's session, whoever holds its log open for writing (SGLang's workers do, whatever else
    they overwrite), and whoever carries the boot's mark in its environment (setproctitle may have wiped that).
    """
    path = folder(root, boot)
    pids = read_json(path / "pid.json")
    here = bool(pids) and pids is not None and pids.get("machine") == machine_id()
    found: Set[int] = set()
    if here and pids is not None:
        found.update(tree(pids))
        if alive(pids["supervisor"], pids["supervisor_start"]):
            found.add(pids["supervisor"])
    log, mark = os.path.realpath(path / "server.log"), f"{MARK}={boot}".encode()
    own = {os.getpid(), os.getppid()}
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if not entry.isdigit() or int(entry) in own or int(entry) in found:
            continue
        pid = int(entry)
        if process_start(pid) is None:
            continue
        stat = process_stat(pid)
        in_session = (here and pids is not None and stat is not None and stat[2] == pids["pgid"]
                      and stat[3] >= pids["server_start"])
        if in_session or _writes(pid, log) or _marked(pid, mark):
            found.add(pid)
    return sorted(found)


def _writes(pid: int, log: str) -> bool:
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
            if os.readlink(f"/proc/{pid}/fd/{fd}") == log:  # noqa: PTH115
                flags = Path(f"/proc/{pid}/fdinfo/{fd}").read_text().split("flags:", 1)[1].split()[0]
                if int(flags, 8) & os.O_ACCMODE != os.O_RDONLY:  # a person's `tail -f` only reads
                    return True
    except (OSError, IndexError, ValueError):
        return False
    return False


def _marked(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
