#!/usr/bin/env python3
"""Supervisor of one server: starts it, watches over it, and leaves nothing of it behind.

Usage: plumbline-supervise BOOT_DIR

A copy of this file stands in ``<plumbline root>/bin/plumbline-supervise``; it needs nothing but the standard library
and must not import anything of the package. It reads ``BOOT_DIR/spec.json``:

    {"argv": [str], "environment": {str: str}, "cwd": str, "log": path, "grace_s": float,
     "lease": path of lease.json or null, "run": str or null, "lease_ttl_s": float,
     "controller": {"pid": int, "start": int, "machine": str} or null}

and writes ``pid.json`` {supervisor, supervisor_start, server, server_start, pgid, machine, started_at,
started_monotonic} and, once the server's main process is gone, ``exit.json``
{code, signal, at, reason, detail, clean, killed, remaining}. ``code`` is the exit status or null, ``signal`` the number
of the signal that ended it or null. ``reason`` is ended, stopped, lease_expired, lease_lost, controller_died or
start_failed. ``clean`` becomes true when no process of the server is left; ``killed`` lists those that only SIGKILL
ended, ``remaining`` those that not even that did (a driver call that does not return), each {pid, command}. Start times
are field 22 of /proc/PID/stat (clock ticks since boot): a pid alone is not an identity.

The supervisor is a child subreaper (prctl(2), PR_SET_CHILD_SUBREAPER), so a worker whose parent died becomes its child
and stays in its tree, also if it left the process group or the session. The server is told by the kernel
(PR_SET_PDEATHSIG) to die should the supervisor itself be killed.
"""
from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict, List, Optional, Set, Tuple

CHECK_S = 0.5  # how often lease and controller are looked at
STUCK_S = 20.0  # after which a process that SIGKILL does not end is reported
LEFTOVER_GRACE_S = 1.0  # for workers that outlive the main process: nothing is left for them to finish
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def machine_id() -> str:
    """Names this boot of this kernel and this pid namespace: within it a (pid, start time) is one process.

    The namespace counts because containers share their host's boot id but not its pids."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"


def process_stat(pid: int) -> Optional[Tuple[str, int, int, int]]:
    """(state, parent, session, start time in ticks) of a process, or None if there is none. proc_pid_stat(5)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2:].split()  # the name may hold spaces and brackets
    return fields[0], int(fields[1]), int(fields[3]), int(fields[19])


def process_start(pid: int) -> Optional[int]:
    """Start time of a living process in clock ticks since boot; None if it is gone or a zombie."""
    stat = process_stat(pid)
    return None if stat is None or stat[0] in "ZX" else stat[3]


def alive(pid: Optional[int], start: Optional[int]) -> bool:
    """Whether that very process lives. A zombie does not: it only waits for its parent to look."""
    return pid is not None and pid > 0 and start is not None and process_start(pid) == start


def descendants(root: int, zombies: bool = False) -> List[int]:
    """Living processes below ``root`` (itself left out), by a walk over /proc. With ``zombies`` those, too: a process
    whose first thread has ended while others run looks like one."""
    children: Dict[int, List[int]] = {}
    states: Dict[int, str] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - thousands of entries: no Path objects
        if entry.isdigit():
            stat = process_stat(int(entry))
            if stat is not None:
                children.setdefault(stat[1], []).append(int(entry))
                states[int(entry)] = stat[0]
    found: List[int] = []
    todo = [root]
    while todo:
        for child in children.get(todo.pop(), []):
            todo.append(child)
            if zombies or states[child] not in "ZX":
                found.append(child)
    return found


def command_of(pid: int) -> str:
    """The command line of a process as one string of at most 200 characters, or its name."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        return (text or Path(f"/proc/{pid}/comm").read_text(errors="replace").strip())[:200]
    except OSError:
        return ""


def send(pid: int, number: int) -> None:
    """Signal a process, which may be gone by now."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def write_json(path: Path, value: Dict[str, Any]) -> None:
    """Replace a JSON file so that a reader sees the old or the new one whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(temporary, "w", encoding="utf-8") as f:
        f.write(json.dumps(value, indent=1) + "\n")
        f.flush()
        os.fsync(f.fileno())
    temporary.replace(path)


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def die_with_parent(parent: int) -> None:
    """Let the kernel end this process when ``parent``, the process that forked it, ends, however it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel was told
        os.kill(os.getpid(), signal.SIGKILL)


class LeaseWatch:
    """Says when the lease is no longer ours.

    Expiry is counted on this machine's monotonic clock from the last renewal seen, so that a step of the wall clock
    can neither kill a measurement nor keep a server alive."""

    def __init__(self, path: str, run: str, ttl_s: float) -> None:
        self.path, self.run, self.ttl_s = Path(path), run, ttl_s
        self.renewal: Any = None
        self.seen = time.monotonic()

    def lost(self) -> Optional[Tuple[str, str]]:
        """(reason, detail) if the lease is another run's or was not renewed for its time to live, else None."""
        try:
            lease = json.loads(self.path.read_text())
        except (OSError, ValueError):
            lease = None  # released or damaged: not renewed, so it runs out
        if lease is not None:
            if lease.get("run") != self.run:
                return "lease_lost", f"the lease is held by run {lease.get('run')} of {lease.get('controller')}"
            if lease.get("renewed_at") != self.renewal:
                self.renewal, self.seen = lease.get("renewed_at"), time.monotonic()
                self.ttl_s = float(lease.get("ttl_s", self.ttl_s))
        silent = time.monotonic() - self.seen
        if silent > self.ttl_s:
            return "lease_expired", f"the lease was not renewed for {silent:.1f} s; its time to live: {self.ttl_s:g} s"
        return None


class Supervisor:
    """One server's life. ``run()`` returns when nothing of the server is left."""

    def __init__(self, boot_dir: Path) -> None:
        self.dir = boot_dir
        self.spec: Dict[str, Any] = json.loads((boot_dir / "spec.json").read_text())
        self.server = 0
        self.status: Optional[int] = None  # of the main process, as waitpid gives it
        self.stop_asked = False
        self.killed: List[Dict[str, Any]] = []
        self.remaining: List[Dict[str, Any]] = []
        self.verdict = ("", "")
        lease, run = self.spec.get("lease"), self.spec.get("run")
        self.lease = LeaseWatch(lease, run, float(self.spec.get("lease_ttl_s", 120))) if lease and run else None
        controller = self.spec.get("controller")
        # A controller elsewhere cannot be looked at: there the lease alone counts.
        self.controller = controller if controller and controller.get("machine") == machine_id() else None

    def run(self) -> int:
        self._listen()
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        try:
            self._start()
        except (OSError, subprocess.SubprocessError) as error:
            self._write_exit("start_failed", str(error), clean=True)
            return 1
        self.verdict = self._watch()
        if self.status is not None:
            self._write_exit(*self.verdict, clean=False)  # at once: somebody waits for the cause of death
        self._end_all()
        self._write_exit(*self.verdict, clean=True)
        return 0

    def _listen(self) -> None:
        self.wake, write = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask_stop)
        # SGLang's workers send SIGQUIT to their parent when they fail; an orphan's parent is this process. Handlers
        # rather than SIG_IGN, which the server would inherit.
        for number in (signal.SIGQUIT, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda *_: None)

    def _ask_stop(self, *_: Any) -> None:
        self.stop_asked = True

    def _start(self) -> None:
        own = os.getpid()
        with open(self.spec["log"], "ab", buffering=0) as log:
            started = time.monotonic()
            child = subprocess.Popen(
                self.spec["argv"], env=self.spec["environment"], cwd=self.spec["cwd"], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True, close_fds=True,
                preexec_fn=lambda: die_with_parent(own))
        self.server = child.pid
        child.returncode = 0  # reaped here, by pid, not by subprocess
        write_json(self.dir / "pid.json", {
            "supervisor": own, "supervisor_start": process_start(own), "server": self.server,
            "server_start": (process_stat(self.server) or ("", 0, 0, 0))[3], "pgid": self.server,
            "machine": machine_id(), "started_at": _now(), "started_monotonic": started})

    def _wait(self, seconds: float) -> None:
        """Sleep until a signal or the time; then reap."""
        ready, _, _ = select.select([self.wake], [], [], max(0.0, seconds))
        if ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self.wake, 4096)
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.server:
                self.status = status

    def _watch(self) -> Tuple[str, str]:
        due = 0.0
        while True:
            self._reap()
            if self.status is not None:
                return "ended", "the server's main process ended by itself"
            if self.stop_asked:
                return "stopped", "the supervisor was told to stop"
            if time.monotonic() >= due:
                due = time.monotonic() + CHECK_S
                if self.controller and not alive(self.controller["pid"], self.controller["start"]):
                    return "controller_died", f"the controller's process {self.controller['pid']} is gone"
                lost = self.lease.lost() if self.lease else None
                if lost:
                    return lost
            self._wait(due - time.monotonic())

    def _end_all(self) -> None:
        """SIGTERM to the group, a time of grace, SIGKILL to whatever is left, until the tree is empty."""
        own = os.getpid()
        grace = float(self.spec.get("grace_s", 10)) if self.status is None else LEFTOVER_GRACE_S
        if self.status is None:  # not reaped, so the group's number cannot be another's by now
            os.killpg(self.server, signal.SIGTERM)
        for pid in descendants(own):
            stat = process_stat(pid)
            if self.status is not None or (stat and stat[2] != self.server):  # out of the session: not told yet
                send(pid, signal.SIGTERM)
        self._until_empty(own, grace)
        if self.status is None and process_start(self.server) is not None:
            self._kill([self.server])
            # Python's resource tracker ignores SIGTERM, outlives the main process by an instant and removes its
            # shared memory: killing it at once would leave files in /dev/shm.
            self._until_empty(own, 0.5)
        seen: Set[int] = set()
        began = time.monotonic()
        while True:
            left = descendants(own)
            if not left and self._no_children():
                self.remaining = []
                return
            self._kill([pid for pid in left if pid not in seen])
            seen.update(left)
            for pid in left:
                send(pid, signal.SIGKILL)
            if not left:
                for pid in descendants(own, zombies=True):
                    send(pid, signal.SIGKILL)
            stuck = time.monotonic() - began > STUCK_S
            if stuck and [entry["pid"] for entry in self.remaining] != left:
                self.remaining = [{"pid": pid, "command": command_of(pid)} for pid in left]
                self._write_exit(*self.verdict, clean=False)
            self._wait(1.0 if stuck else 0.02)

    def _until_empty(self, own: int, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if not descendants(own) and self._no_children():
                return
            self._wait(min(0.05, end - time.monotonic()))

    def _no_children(self) -> bool:
        self._reap()
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return True
        return False

    def _kill(self, pids: List[int]) -> None:
        for pid in pids:
            self.killed.append({"pid": pid, "command": command_of(pid)})
            send(pid, signal.SIGKILL)

    def _write_exit(self, reason: str, detail: str, clean: bool) -> None:
        code = number = None
        if self.status is not None:
            if os.WIFSIGNALED(self.status):
                number = os.WTERMSIG(self.status)
            else:
                code = os.WEXITSTATUS(self.status)
        write_json(self.dir / "exit.json", {
            "code": code, "signal": number, "at": _now(), "reason": reason, "detail": detail, "clean": clean,
            "killed": self.killed, "remaining": self.remaining})


def main(arguments: List[str]) -> int:
    if len(arguments) != 1 or not (Path(arguments[0]) / "spec.json").is_file():
        print("usage: plumbline-supervise BOOT_DIR (a folder that holds spec.json)", file=sys.stderr)
        return 2
    return Supervisor(Path(arguments[0])).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
