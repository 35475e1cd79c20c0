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
from statistics import median
from typing import Any, Dict, List, Optional, Set

from . import query, smi

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
# A GPU that computes for nobody: all of its time busy, no process, next to no memory (seen after a collective that
# hung).
WEDGED_UTIL, WEDGED_MIB, WEDGED_SAMPLES = 99, 1024, 3


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
        self._before: Optional[Dict[str, Dict[str, float]]] = None
        self._started = 0.0

    def start(self, timeout_s: float = 10.0) -> bool:
        """Whether there is a source. Without one ``stop`` gives None; ``why`` says the reason."""
        self._before = counters(self.nvidia_smi)
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

    def stop(self) -> Optional[Dict[str, Any]]:
        """The summary of the window (see ``summarise``), or None if there was no source."""
        if self.source is None:
            return None
        window_s = time.monotonic() - self._started
        running = processes(self.nvidia_smi)
        self._end()
        after = counters(self.nvidia_smi)
        rows = _nvml_rows(self._lines) if self.source == "nvml" else _smi_rows(self._lines)
        found = summarise(rows, window_s, self._before, after, self.interval_s)
        own = family(self.server_pid) if self.server_pid else set()
        found.update(
            source=self.source,
            processes=running or [],
            foreign_processes=foreign(running or [], own) if running else [],
            wedged=wedged(rows, running),
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


def _spread(values: Sequence[Any]) -> Optional[Dict[str, float]]:
    known = [v for v in values if v is not None]
    return {"min": min(known), "median": median(known), "max": max(known)} if known else None


def summarise(
    rows: Sequence[Mapping[str, Any]],
    window_s: float,
    before: Optional[Mapping[str, Mapping[str, float]]],
    after: Optional[Mapping[str, Mapping[str, float]]],
    interval_s: float,
) -> Dict[str, Any]:
    """Samples of a window as figures.

    ``{window_s, samples, gpus: {index: {sm_mhz, mem_mhz, power_w, temperature_c, util, memory_mib: {min, median,
    max}}}, event_reasons: {index: {reason: seconds}}, event_source: counters|samples|null, links: {index: {gen,
    gen_max, width, width_max}}}``. Links are of samples under load (an idle GPU rests at generation 1). Counters are
    in us and only grow; without them the share of samples that showed a reason stands for its time.
    """
    by_gpu: Dict[str, List[Mapping[str, Any]]] = {}
    for row in rows:
        by_gpu.setdefault(str(row["index"]), []).append(row)
    gpus, links, reasons = {}, {}, {}
    for index, mine in by_gpu.items():
        gpus[index] = {
            name: _spread([r[name] for r in mine])
            for name in ("sm_mhz", "mem_mhz", "power_w", "temperature_c", "util", "memory_mib")
        }
        loaded = [r for r in mine if (r["util"] or 0) > 0]
        gens, widths = (
            [r["gen"] for r in loaded if r["gen"] is not None],
            [r["width"] for r in loaded if r["width"] is not None],
        )
        links[index] = {
            "gen": max(gens, default=None),
            "gen_max": _spread_max(mine, "gen_max"),
            "width": min(widths, default=None),
            "width_max": _spread_max(mine, "width_max"),
        }
        shown = [r["reasons"] for r in mine if r["reasons"] is not None]
        if shown:
            names = sorted({name for some in shown for name in some})
            reasons[index] = {
                name: round(window_s * sum(name in some for some in shown) / len(shown), 3) for name in names
            }
    event_source: Optional[str] = "samples" if reasons else None
    if before is not None and after is not None:
        event_source = "counters"
        reasons = {
            index: {
                name: round((value - before.get(index, {}).get(name, 0)) / 1e6, 6)
                for name, value in now.items()
                if value > before.get(index, {}).get(name, 0)
            }
            for index, now in after.items()
        }
    return {
        "window_s": round(window_s, 3),
        "interval_s": interval_s,
        "samples": len(rows),
        "gpus": gpus,
        "event_reasons": reasons,
        "event_source": event_source,
        "links": links,
    }


def _spread_max(rows: Sequence[Mapping[str, Any]], name: str) -> Optional[float]:
    return max((r[name] for r in rows if r[name] is not None), default=None)


def wedged(rows: Sequence[Mapping[str, Any]], running: Optional[Sequence[Mapping[str, Any]]]) -> List[Dict[str, Any]]:
    """GPUs that are fully busy for nobody: ``[{gpu, detail}]``. They need a GPU reset or a reboot; a restart of the
    server does not help.
    """
    found = []
    by_gpu: Dict[str, List[Mapping[str, Any]]] = {}
    for row in rows:
        by_gpu.setdefault(str(row["index"]), []).append(row)
    for index, mine in sorted(by_gpu.items()):
        utils, memory = [r["util"] for r in mine], [r["memory_mib"] for r in mine]
        pids = [r["pids"] for r in mine]
        nobody = (
            all(p is not None and not p for p in pids)
            if any(p is not None for p in pids)
            else (running is not None and not running)
        )
        busy = len(mine) >= WEDGED_SAMPLES and all(u is not None and u >= WEDGED_UTIL for u in utils)
        if busy and nobody and all(m is not None and m < WEDGED_MIB for m in memory):
            power = _spread([r["power_w"] for r in mine])
            found.append(
                {
                    "gpu": index,
                    "detail": f"GPU {index} is {min(utils)} % busy with no process and {max(memory)} MiB in use"
                    + (f" at {power['median']:.0f} W" if power else "")
                    + ": it needs a GPU reset or a reboot",
                }
            )
    return found


def look(seconds: float = 2.0, python: str = "", nvidia_smi: str = "nvidia-smi") -> Optional[Dict[str, Any]]:
    """A short look at the GPUs before anything starts: the summary of some seconds, or None without GPUs."""
    sampler = Sampler(python=python, nvidia_smi=nvidia_smi, interval_s=min(0.5, seconds / 4))
    if not sampler.start():
        return None
    time.sleep(seconds)
    return sampler.stop()
