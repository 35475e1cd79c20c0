"""Who listens on a TCP port of this machine, from /proc/net/tcp and /proc/*/fd (proc(5))."""
from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Any, Dict, List, Optional, Set

from ..errors import PlumblineError
from .supervisor import command_of

_LISTEN = "0A"


def listeners(port: int) -> List[Dict[str, Any]]:
    """[{inode: str, uid: int, address: hexadecimal as the kernel writes it}] of the sockets that listen on ``port``."""
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue  # no IPv6
        for line in lines:
            fields = line.split()
            address, _, number = fields[1].partition(":")
            if fields[3] == _LISTEN and int(number, 16) == port:
                found.append({"inode": fields[9], "uid": int(fields[7]), "address": address})
    return found


def owners(port: int) -> Optional[Set[int]]:
    """Pids that hold a socket listening on ``port``; an empty set if nothing listens, None if nobody seen holds it.

    Processes of other users show their descriptors to root only, those of other pid namespaces not at all."""
    inodes = {entry["inode"] for entry in listeners(port)}
    if not inodes:
        return set()
    targets = {f"socket:[{inode}]" for inode in inodes}
    pids = {pid for pid in _pids() if targets & _links(pid)}
    return pids or None


def check_free(port: int) -> None:
    """Raise PlumblineError, naming pid, command and user of the owner, if something listens on ``port``."""
    sockets = listeners(port)
    if not sockets:
        return
    pids = owners(port)
    if pids:
        pid = min(pids)
        found = f"process {pid} of user {_user(_uid(pid))}: {command_of(pid)}"
        remedy = f"stop process {pid}, or choose another sglang_server_port"
    else:
        found = f"a process of user {_user(sockets[0]['uid'])} that this user may not look into"
        remedy = f"find it with 'sudo ss -ltnp sport = :{port}' and stop it, or choose another sglang_server_port"
    raise PlumblineError(f"port {port} is in use", "sglang_server_port", found, "a port without a listener", remedy)


def _pids() -> List[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208


def _links(pid: int) -> Set[str]:
    out: Set[str] = set()
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
            out.add(os.readlink(f"/proc/{pid}/fd/{fd}"))  # noqa: PTH115
    except OSError:
        return out
    return out


def _uid(pid: int) -> int:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return -1


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
