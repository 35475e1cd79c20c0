"""Samples of the GPUs during a window: clocks, power, temperature, link, memory, processes, and why clocks were held
down.

From NVML through the build's own Python (nvidia-ml-py), else from one looping ``nvidia-smi``; never before or after
the window, where they say nothing about it. For how long clocks were held down is the difference of the driver's
counters.
"""

from __future__ import annotations

import json
import pkgutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Dict, List, Optional, Set, Tuple

from . import (
    nvml_loop,  # noqa: F401  (read as text below: what is not imported, Ansible does not send)
    query,
    smi,
)
from . import window as windows

_QUERY = (
    "index,clocks.current.sm,clocks.current.memory,power.draw,temperature.gpu,utilization.gpu,memory.used,pcie.link.gen.current,"
    "pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max,clocks_event_reasons.active"
)
_APPS = "gpu_bus_id,pid,process_name,used_memory"
_FIELDS = {
    "clocks.current.sm": "sm_mhz",
    "clocks.current.memory": "mem_mhz",
    "power.draw": "power_w",
    "temperature.gpu": "temperature_c",
    "utilization.gpu": "util",
    "memory.used": "memory_mib",
    "pcie.link.gen.current": "gen",
    "pcie.link.gen.max": "gen_max",
    "pcie.link.width.current": "width",
    "pcie.link.width.max": "width_max",
}


def ask(argv: Sequence[str], timeout_s: float = 20.0) -> Optional[str]:
    """What a command prints, or None if it cannot be run or fails."""
    try:
        done = subprocess.run(list(argv), capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def counters(nvidia_smi: str = "nvidia-smi") -> Optional[Dict[str, Dict[str, float]]]:
    """The driver's counters of clock event reasons, us by GPU index and reason; None if this driver has none."""
    text = ask([nvidia_smi, "-q", "-d", "PERFORMANCE"])
    if text is None:
        return None
    try:
        gpus = smi.parse_query(text)["gpus"]
    except ValueError:
        return None
    found = {str(g["index"]): {k: v for k, v in g["counters_us"].items() if v is not None} for g in gpus}
    return found if any(found.values()) else None


def processes(nvidia_smi: str = "nvidia-smi") -> Optional[List[Dict[str, Any]]]:
    """Compute processes that the driver knows: ``[{gpu: bus id, pid, name, memory_mib}]``; None if it cannot be
    asked.
    """
    text = ask([nvidia_smi, f"--query-compute-apps={_APPS}", "--format=csv"])
    if text is None:
        return None
    rows = []
    for line in text.strip().split("\n")[1:]:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) >= 4 and cells[1].isdigit():
            rows.append(
                {
                    "gpu": cells[0],
                    "pid": int(cells[1]),
                    "name": ", ".join(cells[2:-1]),
                    "memory_mib": smi.number(cells[-1]),
                }
            )
    return rows


def memory_in_use(nvidia_smi: str = "nvidia-smi") -> Dict[str, float]:
    """MiB in use by GPU index; {} if the driver cannot be asked. In a container the processes that hold it may be
    invisible.
    """
    text = ask([nvidia_smi, "--query-gpu=index,memory.used", "--format=csv,noheader,nounits"])
    cells = [[cell.strip() for cell in line.split(",")] for line in (text or "").strip().split("\n")]
    return {row[0]: float(row[1]) for row in cells if len(row) == 2 and row[0].isdigit() and row[1].isdigit()}


def family(pid: int) -> Set[int]:
    """A process, all its descendants, and the session they are in."""
    children: Dict[int, List[int]] = {}
    sessions: Dict[int, List[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(entry.name))
        sessions.setdefault(int(fields[3]), []).append(int(entry.name))
    found, wanted = set(), [pid, *sessions.get(pid, [])]
    while wanted:
        one = wanted.pop()
        if one not in found:
            found.add(one)
            wanted += children.get(one, [])
    return found


def foreign(running: Sequence[Mapping[str, Any]], own: Set[int]) -> List[Dict[str, Any]]:
    """Processes on the GPUs that are not ours. One that does not exist here (another container's) is somebody
    else's, too.

    They are reported and never touched. If none of all the pids exists here while our own server has some on a GPU,
    the pids are those of another namespace and nothing can be told: [].
    """
    if running and not any(Path(f"/proc/{p['pid']}").exists() for p in running):
        return [] if own else [dict(p) for p in running]
    return [dict(p) for p in running if p["pid"] not in own]


class Sampler:
    """Samples in the background: ``start()`` before the window, ``stop()`` after it gives the summary."""

    def __init__(
        self,
        python: str = "",
        nvidia_smi: str = "nvidia-smi",
        interval_s: float = 0.5,
        server_pid: Optional[int] = None,
    ) -> None:
        self.python, self.nvidia_smi, self.interval_s, self.server_pid = python, nvidia_smi, interval_s, server_pid
        self.source: Optional[str] = None
        self.why = ""
        self._process: Optional[subprocess.Popen] = None
        self._lines: List[Any] = []
        self._first = threading.Event()
        self._reader: Optional[threading.Thread] = None
        self.before: Optional[Dict[str, Dict[str, float]]] = None
        self._started = 0.0

    def start(self, timeout_s: float = 10.0) -> bool:
        """Whether there is a source. Without one ``stop`` gives None; ``why`` says the reason."""
        self.before = counters(self.nvidia_smi)
        tried = []
        if self.python:
            data = pkgutil.get_data(__package__, "nvml_loop.py")
            argv = [self.python, "-c", (data or b"").decode(), str(self.interval_s)]
            if self._launch(argv, "nvml", timeout_s):
                return True
            tried.append(f"NVML: {self.why}")
        every = str(int(self.interval_s * 1000))
        for fields in (
            _QUERY,
            _QUERY.replace("clocks_event_reasons", "clocks_throttle_reasons"),
        ):  # before driver 535
            argv = [self.nvidia_smi, f"--query-gpu={fields}", "--format=csv", "-lms", every]
            if self._launch(argv, "nvidia-smi", timeout_s):
                return True
        tried.append(f"nvidia-smi: {self.why}")
        self.why = "; ".join(tried)
        return False

    def _launch(self, argv: Sequence[str], source: str, timeout_s: float) -> bool:
        self._lines, self._first = [], threading.Event()
        try:
            self._process = subprocess.Popen(
                list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        except OSError as error:
            self.why = f"{argv[0]}: {error.strerror}"
            return False
        self._reader = threading.Thread(
            target=self._read, args=(self._process, self._lines, self._first), daemon=True
        )
        self._reader.start()
        self._first.wait(timeout_s)
        head = self._lines[0][1] if self._lines else ""
        if not head.startswith("index" if source == "nvidia-smi" else '{"nvml"'):
            self.why = json.loads(head)["error"] if head.startswith('{"error"') else head or "no answer"
            self._end()
            return False
        self.source, self._started = source, time.monotonic()
        return True

    @staticmethod
    def _read(process: subprocess.Popen, lines: List[Any], first: threading.Event) -> None:
        if process.stdout is not None:
            for line in process.stdout:
                lines.append((time.monotonic(), line.strip()))
                first.set()
        first.set()

    def _end(self) -> None:
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        if self.source != "nvml":
            process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._reader is not None:
            self._reader.join(5)
        self._process = None

    def stop(self, window: Optional[Tuple[float, float]] = None) -> Optional[Dict[str, Any]]:
        """The summary of the window (see ``window.summarise``), or None if there was no source.

        ``window``: monotonic times; samples outside are left out. Without, everything since ``start`` counts.
        """
        if self.source is None:
            return None
        begin, end = window or (self._started, time.monotonic())
        window_s = end - begin
        running = processes(self.nvidia_smi)
        self._end()
        after = counters(self.nvidia_smi)
        rows = _nvml_rows(self._lines) if self.source == "nvml" else _smi_rows(self._lines)
        rows = [row for row in rows if begin <= row["at"] <= end]
        found = windows.summarise(rows, window_s, self.before, after, self.interval_s)
        own = family(self.server_pid) if self.server_pid else set()
        found.update(
            source=self.source,
            processes=running or [],
            foreign_processes=foreign(running or [], own) if running else [],
            wedged=windows.wedged(rows, running),
        )
        return found


def _nvml_rows(lines: Sequence[Any]) -> List[Dict[str, Any]]:
    rows = []
    for at, line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if "index" in row:
            row["at"] = at
            row["reasons"] = smi.reasons_of(row["reasons"]) if row["reasons"] is not None else None
            rows.append(row)
    return rows


def _smi_rows(lines: Sequence[Any]) -> List[Dict[str, Any]]:
    if not lines:
        return []
    header, rows = lines[0][1], []
    for at, line in lines[1:]:
        for parsed in query.parse_csv(f"{header}\n{line}"):
            rows.append(
                {
                    "at": at,
                    "index": parsed["index"],
                    "reasons": parsed.get("reasons"),
                    "pids": None,
                    **{ours: parsed.get(theirs) for theirs, ours in _FIELDS.items()},
                }
            )
    return rows


def look(seconds: float = 2.0, python: str = "", nvidia_smi: str = "nvidia-smi") -> Optional[Dict[str, Any]]:
    """A short look at the GPUs before anything starts: the summary of some seconds, or None without GPUs."""
    sampler = Sampler(python=python, nvidia_smi=nvidia_smi, interval_s=min(0.5, seconds / 4))
    if not sampler.start():
        return None
    time.sleep(seconds)
    return sampler.stop()


class WindowSampler:
    """A sampler as a measurement takes it: made before the warm-up, ``tick(at)`` in the window, ``result()`` after
    it.

    Nothing here makes the measuring client wait: the source runs since the warm-up, and the counters at the start of
    the window are read on a thread. Only samples between the first and the last tick count.
    """

    def __init__(self, python: str = "", nvidia_smi: str = "nvidia-smi", server_pid: Optional[int] = None) -> None:
        self.sampler = Sampler(python=python, nvidia_smi=nvidia_smi, server_pid=server_pid)
        self.on = self.sampler.start()
        self.first: Optional[float] = None
        self.last = 0.0
        self._counting: Optional[threading.Thread] = None

    def tick(self, at: float) -> None:
        now = time.monotonic()
        if self.first is None:
            self.first = now
            if self.on:
                self._counting = threading.Thread(target=self._count, daemon=True)
                self._counting.start()
        self.last = now

    def _count(self) -> None:
        self.sampler.before = counters(self.sampler.nvidia_smi)

    def result(self) -> Optional[Dict[str, Any]]:
        """The window's summary (see ``Sampler.stop``), or None without a source or without a window."""
        if not self.on:
            return None
        if self._counting is not None:
            self._counting.join(30)
        window = None if self.first is None else (self.first, max(self.last, self.first))
        self.on = False
        found = self.sampler.stop(window)
        return found if window else None


def for_engine(engine: str, python: str = "", server_pid: Optional[int] = None) -> Optional[WindowSampler]:
    """A sampler for a measurement on this engine: None where no GPU computes, or none can be asked."""
    if engine != "sglang-cuda":
        return None
    sampler = WindowSampler(python=python, server_pid=server_pid)
    return sampler if sampler.on else None
