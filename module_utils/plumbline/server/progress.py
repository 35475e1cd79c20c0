"""Does a starting server still get on? By its log, its CPU time and the bytes that it reads."""
from __future__ import annotations

import os
import time
from collections import deque
from pathlib import Path
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

from .supervisor import process_stat

SAMPLE_S = 1.0
IDLE_SHARE = 0.02  # of one core: what event loops that wait for nothing use
IDLE_BYTES = 1 << 20


class Progress:
    """Fed by the watcher's loop; `stuck` says why nothing is to be expected any more.

    A silent log alone is no hang: loading a terabyte of weights or compiling kernels says nothing for minutes. But a
    process that waits for a GPU spins at full CPU for ever, so silence has a limit of its own."""

    def __init__(self, hang_s: float, silence_s: float) -> None:
        self.hang_s, self.silence_s = hang_s, silence_s
        self.grown = time.monotonic()
        self.samples: Deque[Tuple[float, float, int]] = deque()
        self.last: Dict[Tuple[int, int], Tuple[float, int]] = {}
        self.cpu_s, self.read_bytes = 0.0, 0
        self.due = 0.0

    def log_grew(self) -> None:
        self.grown = time.monotonic()

    def stuck(self, tree: Callable[[Dict[str, Any]], List[int]], pids: Dict[str, Any]) -> Optional[str]:
        """Why the server is held to hang, or None. ``tree(pids)`` gives its living processes."""
        now = time.monotonic()
        if now < self.due:
            return None
        self.due = now + min(SAMPLE_S, self.hang_s / 10)
        self._sample(tree(pids))
        self.samples.append((now, self.cpu_s, self.read_bytes))
        while len(self.samples) > 1 and self.samples[1][0] <= now - self.hang_s:
            self.samples.popleft()
        silent = now - self.grown
        if self.silence_s and silent >= self.silence_s:
            return f"the log has not grown for {silent:.0f} s although its processes compute"
        began, cpu, read = self.samples[0]
        window = now - began
        if silent >= self.hang_s and window >= self.hang_s * 0.99:
            used, got = self.cpu_s - cpu, self.read_bytes - read
            if used < IDLE_SHARE * window and got < IDLE_BYTES:
                return (f"for {silent:.0f} s the log has not grown, and in {window:.0f} s all processes together used "
                        f"{used:.2f} s of CPU and read {got} bytes")
        return None

    def _sample(self, pids: List[int]) -> None:
        seen: Dict[Tuple[int, int], Tuple[float, int]] = {}
        for pid in pids:
            usage = _usage(pid)
            if usage:
                key, cpu, read = usage
                was = self.last.get(key, (0.0, 0))
                self.cpu_s += max(0.0, cpu - was[0])
                self.read_bytes += max(0, read - was[1])
                seen[key] = (cpu, read)
        self.last = seen


def _usage(pid: int) -> Optional[Tuple[Tuple[int, int], float, int]]:
    """((pid, start), CPU seconds, bytes read) of a process. /proc/PID/io is for the same user only: then 0 bytes."""
    stat = process_stat(pid)
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    if stat is None:
        return None
    fields = text[text.rindex(")") + 2:].split()
    cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    try:
        counters = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        read = int(counters["rchar"])
    except (OSError, KeyError, ValueError):
        read = 0
    return (pid, stat[3]), cpu, read
