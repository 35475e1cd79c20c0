"""The lease: who works on this host, so that two experiments never share it.

``<plumbline root>/lease.json``:
``{controller, run, experiment, controller_pid, controller_start, controller_machine, acquired_at, renewed_at,
expires_at, ttl_s}``. The three times are Unix seconds of this host's clock; ``controller_pid``, ``controller_start``
(clock ticks since boot) and ``controller_machine`` (`supervisor.machine_id`) say which process drives the run, if the
controller told.

Who may take it:

- anybody, if it is free or was not renewed for its time to live;
- the same run at once, since a controller that died is started again; but not while the process that holds it for that
  run lives on this very machine, since then two controllers would drive one run;
- another run at once if the holder's process ran on this very machine and is gone; else when it has expired.

Every change is made under an exclusive lock on ``lease.lock`` and replaces the file as a whole.
"""
from __future__ import annotations

import fcntl
import getpass
import json
import multiprocessing
import os
import platform
import time
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict, Iterator, Mapping, Optional, Union

from ..errors import PlumblineError
from ..files import write_json
from .supervisor import alive, machine_id, process_start

TTL_S = 120.0
IDENTITY = ("run", "controller", "controller_pid", "controller_start", "controller_machine")


class LeaseLostError(PlumblineError):
    """The host is no longer held by the run that works on it: stopped by somebody, or expired."""

    failure_class = "lease_lost"


def identity(pid: Optional[int] = None) -> Dict[str, Any]:
    """What names a process on this machine in a lease: {controller_pid, controller_start, controller_machine}."""
    number = os.getpid() if pid is None else pid
    return {"controller_pid": number, "controller_start": process_start(number), "controller_machine": machine_id()}


def controller_identity() -> Dict[str, Any]:
    """{controller: user@node, controller_pid, controller_start, controller_machine} of the Ansible run that calls this.

    Ansible executes plugins in workers that it forks; what stands for the run is their parent."""
    parent = multiprocessing.parent_process()
    return {"controller": f"{getpass.getuser()}@{platform.node()}",
            **identity(parent.pid if parent is not None and parent.pid else os.getpid())}


def path_of(root: Union[str, Path]) -> Path:
    return Path(root) / "lease.json"


def read(root: Union[str, Path]) -> Optional[Dict[str, Any]]:
    """The lease as it stands, expired or not; None if there is none. A damaged file counts as none."""
    try:
        value = json.loads(path_of(root).read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) and "run" in value and "expires_at" in value else None


def holder_dead(lease: Mapping[str, Any]) -> bool:
    """True only where it is certain: the holder's process ran on this machine, in this pid namespace, and is gone."""
    return _here(lease) and not alive(lease.get("controller_pid"), lease.get("controller_start"))


def holder_alive(lease: Mapping[str, Any]) -> bool:
    """True only where it is certain: the holder's process runs on this machine, in this pid namespace."""
    return _here(lease) and alive(lease.get("controller_pid"), lease.get("controller_start"))


def acquire(root: Union[str, Path], holder: Mapping[str, Any], ttl_s: float = TTL_S, dry: bool = False,
            now: Optional[float] = None) -> Dict[str, Any]:
    """Take or renew the lease for ``holder`` (the lease's keys but the times; run and controller are needed).

    Returns {changed, lease, took_over: str or null}; renewing one's own lease is no change. ``dry`` only says what
    would happen. Raises PlumblineError naming who holds it, since when, until when, and what to do.
    """
    for key in ("run", "controller"):
        if not holder.get(key):
            raise PlumblineError(f"a lease needs {key!r}", "plumbline_lease", holder.get(key), "a text")
    if dry and not Path(root).is_dir():
        return {"changed": True, "lease": _fresh(holder, ttl_s, time.time() if now is None else now), "took_over": None}
    with _locked(root):
        at = time.time() if now is None else now
        held = read(root)
        took_over = None
        ours = held is not None and _same(held, holder)
        if held is not None and not ours:
            took_over = _may_take(held, holder, at, root)
        lease = _fresh(holder, ttl_s, at)
        if held is not None and ours:
            lease["acquired_at"] = held["acquired_at"]
        if not dry:
            write_json(path_of(root), lease)
        return {"changed": not ours, "lease": lease, "took_over": took_over}


def renew(root: Union[str, Path], holder: Mapping[str, Any], now: Optional[float] = None) -> Dict[str, Any]:
    """Renew the lease that ``holder`` (as `acquire` returned it) holds, and return it.

    An expired lease that nobody else took is still ours. Raises PlumblineError if it is gone or another's: then the
    work must stop, since somebody else may be using the host.
    """
    with _locked(root):
        at = time.time() if now is None else now
        held = read(root)
        if held is None or not _same(held, holder):
            other = "nobody" if held is None else f"run {held['run']} of {held.get('controller')}"
            raise LeaseLostError(
                f"the lease on this host is no longer held by run {holder.get('run')}", str(path_of(root)), other,
                f"run {holder.get('run')} of {holder.get('controller')}",
                "start the run again when the host is free: it goes on where it was")
        held.update(renewed_at=at, expires_at=at + float(held.get("ttl_s", TTL_S)))
        write_json(path_of(root), held)
        return held


class Renewer:
    """Renews a lease now and then from a loop that does something else; without a lease it does nothing."""

    def __init__(self, root: Union[str, Path], holder: Optional[Mapping[str, Any]]) -> None:
        self.root, self.holder, self.due = root, holder, 0.0

    def tick(self) -> None:
        """Renew if a sixth of the time to live has passed. Raises PlumblineError if the lease is lost."""
        if self.holder and time.monotonic() >= self.due:
            lease = renew(self.root, self.holder)
            self.due = time.monotonic() + float(lease.get("ttl_s", TTL_S)) / 6


def release(root: Union[str, Path], run: str, force: bool = False, dry: bool = False) -> Dict[str, Any]:
    """Give the lease back if ``run`` holds it (whoever does, with ``force``): {changed, lease: what is left}."""
    if not path_of(root).exists():
        return {"changed": False, "lease": None}
    with _locked(root):
        held = read(root)
        if held is not None and held["run"] != run and not force:
            return {"changed": False, "lease": held}
        changed = path_of(root).exists()
        if changed and not dry:
            path_of(root).unlink()
        return {"changed": changed, "lease": None}


def _fresh(holder: Mapping[str, Any], ttl_s: float, at: float) -> Dict[str, Any]:
    return {
        "controller": holder["controller"], "run": holder["run"], "experiment": holder.get("experiment"),
        "controller_pid": holder.get("controller_pid"), "controller_start": holder.get("controller_start"),
        "controller_machine": holder.get("controller_machine"),
        "acquired_at": at, "renewed_at": at, "expires_at": at + ttl_s, "ttl_s": ttl_s}


def _here(lease: Mapping[str, Any]) -> bool:
    known = lease.get("controller_pid") and lease.get("controller_start") and lease.get("controller_machine")
    return bool(known) and lease["controller_machine"] == machine_id()


def _same(held: Mapping[str, Any], holder: Mapping[str, Any]) -> bool:
    return all(held.get(key) == holder.get(key) for key in IDENTITY)


def _may_take(held: Mapping[str, Any], holder: Mapping[str, Any], at: float, root: Union[str, Path]) -> str:
    """Why the lease may be taken from its holder, or PlumblineError."""
    if held["run"] == holder["run"]:
        if holder_alive(held):
            raise PlumblineError(
                f"run {held['run']} is already being driven by process {held['controller_pid']} on this machine",
                str(path_of(root)), _who(held), "one controller for a run",
                f"wait for process {held['controller_pid']} to end, or stop it")
        return "same run"
    if holder_dead(held):
        return "the former controller's process is gone"
    if at >= held["expires_at"]:
        return "expired"
    raise PlumblineError(
        f"this host is held by another run, {held['run']}", str(path_of(root)), _who(held), f"run {holder['run']}",
        f"wait until that run has ended; if its controller died, the host is free in {held['expires_at'] - at:.0f} s; "
        "'ansible-playbook playbooks/stop.yml' ends it now")


def _who(held: Mapping[str, Any]) -> str:
    process = f", process {held['controller_pid']}" if held.get("controller_pid") else ""
    times = ", ".join(f"{word} {_time(held[key])}" for word, key in (
        ("since", "acquired_at"), ("renewed", "renewed_at"), ("until", "expires_at")))
    run = f"run {held['run']}, experiment {held.get('experiment')}"
    return f"controller {held.get('controller')}{process}, {run}, {times}"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextmanager
def _locked(root: Union[str, Path]) -> Iterator[None]:
    folder = Path(root)
    if not folder.is_dir():
        raise PlumblineError("there is no plumbline root on this host", str(folder), "no such folder", None,
                             "run the role plumbline_common first, or set plumbline_root")
    with open(folder / "lease.lock", "a") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield
