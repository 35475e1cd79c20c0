"""What hanging processes are doing.

Python stacks by py-spy if there is one, else native stacks by gdb if there is one; and always what the kernel tells of
each thread (/proc/PID/task/*/{comm,stat,wchan,stack}; ``stack`` is for root alone).
"""
from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .supervisor import command_of, process_stat

MOST_PROCESSES, MOST_THREADS, MOST_TEXT = 24, 64, 20000


def dump(pids: Sequence[int], program: Optional[str] = None, limit_s: float = 45.0) -> Dict[str, Any]:
    """{tool, note, processes: [{pid, command, state, threads, stack, error}]}, threads: [{tid, name, state, wchan,
    kernel_stack}].

    ``tool``: py-spy, gdb or none. ``program``: the server's interpreter; a py-spy beside it is preferred. A tool that
    is not permitted to look (ptrace) leaves its message in ``error``. Each process gets 10 s at most.
    """
    tool, command = _tool(program)
    end = time.monotonic() + limit_s
    out: List[Dict[str, Any]] = []
    # Trackers of Python's multiprocessing only wait; schedulers are what one wants to see.
    wanted = [pid for pid in pids if "resource_tracker" not in command_of(pid)]
    for pid in wanted[:MOST_PROCESSES]:
        entry = _kernel_view(pid)
        if entry is None:
            continue
        left = end - time.monotonic()
        if command and left > 1:
            entry["stack"], entry["error"] = _run(command, pid, min(10.0, left))
        elif command:
            entry["error"] = "no time was left"
        out.append(entry)
    notes = ["neither py-spy nor gdb is installed: only the kernel's view of each thread"] if tool == "none" else []
    if len(wanted) > MOST_PROCESSES:
        notes.append(f"{len(wanted) - MOST_PROCESSES} more processes were left out")
    return {"tool": tool, "processes": out, "note": "; ".join(notes) or None}


def as_text(value: Dict[str, Any]) -> str:
    """A dump for a person."""
    lines = [f"stacks taken by: {value['tool']}" + (f" ({value['note']})" if value["note"] else "")]
    for process in value["processes"]:
        lines += ["", f"process {process['pid']} (state {process['state']}): {process['command']}"]
        for thread in process["threads"]:
            where = thread["wchan"] or "-"
            lines.append(f"  thread {thread['tid']} {thread['name']} state {thread['state']} in {where}")
            lines += [f"    {frame}" for frame in thread["kernel_stack"]]
        if process["error"]:
            lines.append(f"  {value['tool']}: {process['error']}")
        lines += [f"  | {line}" for line in process["stack"].splitlines()]
    return "\n".join(lines) + "\n"


def _tool(program: Optional[str]) -> Tuple[str, List[str]]:
    beside = Path(program).parent / "py-spy" if program else None
    spy = str(beside) if beside and beside.is_file() and os.access(beside, os.X_OK) else shutil.which("py-spy")
    if spy:
        return "py-spy", [spy, "dump", "--pid"]
    gdb = shutil.which("gdb")
    if gdb:
        return "gdb", [gdb, "-nx", "-batch", "-ex", "set pagination off", "-ex", "thread apply all bt 40", "-p"]
    return "none", []


def _kernel_view(pid: int) -> Optional[Dict[str, Any]]:
    stat = process_stat(pid)
    if stat is None:
        return None
    threads = []
    try:
        tids = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208
    except OSError:
        return None
    for tid in tids[:MOST_THREADS]:
        base = Path(f"/proc/{pid}/task/{tid}")
        state, wchan = _read(base / "stat"), _read(base / "wchan").strip()
        threads.append({
            "tid": tid, "name": _read(base / "comm").strip(), "state": state[state.rfind(")") + 2:][:1],
            "wchan": "" if wchan == "0" else wchan,  # 0: it runs, or the kernel does not tell
            "kernel_stack": [line.split("] ", 1)[-1] for line in _read(base / "stack").splitlines()][:20]})
    return {"pid": pid, "command": command_of(pid), "state": stat[0], "threads": threads, "stack": "", "error": None}


def _run(command: Sequence[str], pid: int, seconds: float) -> Tuple[str, Optional[str]]:
    try:
        done = subprocess.run([*command, str(pid)], capture_output=True, timeout=seconds, check=False,
                              stdin=subprocess.DEVNULL, env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"})
    except subprocess.TimeoutExpired:
        return "", f"gave no stack within {seconds:.0f} s"
    except OSError as error:
        return "", str(error)
    text = done.stdout.decode(errors="replace")
    noise = ("[New LWP", "warning:", "Reading", "Download")
    frames = [line for line in text.splitlines() if not line.startswith(noise)]
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return "\n".join(frames)[:MOST_TEXT], (said[-1][:300] if said and (done.returncode or not frames) else None)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
