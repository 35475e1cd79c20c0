"""Group ``runtime``: what is set for running programs (identity), and how the host is doing at this moment
(condition)."""

from __future__ import annotations

import hashlib
import os
import re
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from . import conf
from .context import Context
from .files import walk
from .values import Group, absent, unknown

# Folders in which engines keep code that they compiled on this host, below the home of the server's user.
_JIT = (
    ".cache/flashinfer",
    ".cache/sglang",
    ".cache/tvm-ffi",
    ".triton/cache",
    ".cache/torch_extensions",
    ".cache/vllm",
    ".nv/ComputeCache",
    ".cache/deep_gemm",
)
# limits.conf and systemd's defaults: what a new session or service may use.
_LIMITS = (
    "/etc/security/limits.conf",
    "/etc/security/limits.d/",
    "/etc/systemd/system.conf",
    "/etc/systemd/system.conf.d/",
)
_JIT_VARIABLES = (
    "TRITON_CACHE_DIR",
    "TVM_FFI_CACHE_DIR",
    "FLASHINFER_WORKSPACE_BASE",
    "SGLANG_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "SGLANG_DG_CACHE_DIR",
)


def _busy(context: Context) -> Optional[List[int]]:
    first = context.text("/proc/stat").split("\n")[0].split()
    return [int(v) for v in first[1:9]] if first[:1] == ["cpu"] else None


class LoadMeter:
    """Share of the processors that others use, between making it and ``share``: this process's own time is taken
    out."""

    def __init__(self, context: Context) -> None:
        self.context, self.before, self.own, self.started = (
            context,
            _busy(context),
            time.process_time(),
            time.monotonic(),
        )

    def share(self) -> Any:
        """Fraction of all processors, 0 to 1; unknown where the kernel does not say."""
        if time.monotonic() - self.started < 0.1:
            time.sleep(0.1)
        after = _busy(self.context)
        if self.before is None or after is None:
            return unknown("/proc/stat is not readable")
        ticks = os.sysconf("SC_CLK_TCK")
        whole = sum(after) - sum(self.before)
        idle = (after[3] + after[4]) - (self.before[3] + self.before[4])
        own = (time.process_time() - self.own) * ticks
        return round(min(1.0, max(0.0, (whole - idle - own) / whole)), 3) if whole > 0 else 0.0


def _policy(context: Context, item: str) -> Any:
    """One value for all processors, or ``{value: how many}`` where they differ; absent where the kernel scales no
    clocks."""
    counts: Dict[str, int] = {}
    base = "/sys/devices/system/cpu/cpufreq"
    for policy in context.names(base):
        if policy.startswith("policy"):
            value = context.text(f"{base}/{policy}/{item}")
            if value:
                counts[value] = counts.get(value, 0) + 1
    if not counts:
        return absent()
    return next(iter(counts)) if len(counts) == 1 else counts


def _swap(context: Context) -> Any:
    found = context.read("/proc/swaps")
    if not isinstance(found, str):
        return found
    rows = [line.split() for line in found.splitlines()[1:]]
    return [
        {"name": r[0], "kib": int(r[2])} for r in rows if len(r) >= 3 and not r[0].startswith("/dev/zram")
    ] or absent()


def _shm(context: Context) -> Any:
    for line in context.text("/proc/self/mountinfo").splitlines():
        parts = line.split()
        if len(parts) > 5 and parts[4] == "/dev/shm":
            try:
                found = os.statvfs("/dev/shm")
            except OSError as e:
                return unknown(f"/dev/shm: {e.strerror}")
            size = re.search(r"\bsize=(\w+)", parts[-1])
            # Without a size of its own a tmpfs takes half of the memory, which moves a little from boot to boot.
            return {"mib": found.f_blocks * found.f_frsize >> 20} if size else {"mib": "half of memory"}
    return absent()


def jit_caches(context: Context, environment: Dict[str, str]) -> Dict[str, Any]:
    """Folder -> ``{files, bytes, digest}`` over names and sizes of compiled code."""
    home = context.home or Path("~").expanduser()
    folders = [str(home / f) for f in _JIT] + [environment[v] for v in _JIT_VARIABLES if environment.get(v)]
    out: Dict[str, Any] = {}
    for folder in sorted(set(folders)):
        top = context.path(folder)
        if not top.is_dir():
            continue
        entries, errors = walk(top)
        lines = "\n".join(f"{n} {key[1]}" for n, (key, _m) in sorted(entries.items()))
        out[folder] = (
            unknown(errors[0][1])
            if errors
            else {
                "files": len(entries),
                "bytes": sum(key[1] for key, _m in entries.values()),
                "digest": hashlib.sha256(lines.encode()).hexdigest()[:16],
            }
        )
    return out


def _limits(context: Context, pid: str) -> Dict[str, str]:
    out: Dict[str, str] = {}
    for line in context.text(f"/proc/{pid}/limits").splitlines()[1:]:
        parts = re.split(r"\s{2,}", line.strip())
        if len(parts) >= 3 and parts[0] in (
            "Max locked memory",
            "Max open files",
            "Max processes",
            "Max stack size",
            "Max core file size",
        ):
            out[parts[0][4:]] = f"{parts[1]}/{parts[2]}"
    return out


def servers(context: Context) -> Dict[str, Dict[str, str]]:
    """Limits of the SGLang servers that run now, by pid."""
    out: Dict[str, Dict[str, str]] = {}
    for pid in context.names("/proc"):
        if pid.isdigit():
            command = context.text(f"/proc/{pid}/cmdline")
            if "sglang.launch_server" in command or re.match(r"sglang::|.*/sglang\0serve", command):
                out[pid] = _limits(context, pid)
    return out


def _cgroup(context: Context) -> Any:
    """What the host grants this container (the root of the visible cgroup tree); absent on a bare host."""
    out = {}
    for item in ("cpu.max", "memory.max", "memory.swap.max", "cpuset.cpus.effective", "pids.max"):
        value = context.text(f"/sys/fs/cgroup/{item}")
        if value:
            out[item] = value
    for item in ("cpu/cpu.cfs_quota_us", "memory/memory.limit_in_bytes", "cpuset/cpuset.effective_cpus"):  # version 1
        value = context.text(f"/sys/fs/cgroup/{item}")
        if value:
            out[item] = value
    return out or absent()


def observe(context: Context, environment: Dict[str, str], meter: LoadMeter) -> Group:
    """The group ``runtime``."""
    group = Group("runtime")
    group.identity["governor"] = _policy(context, "scaling_governor")
    group.identity["energy_preference"] = _policy(context, "energy_performance_preference")
    group.identity["clock_limit_khz"] = _policy(context, "scaling_max_freq")
    boost = context.text("/sys/devices/system/cpu/cpufreq/boost") or {"0": "1", "1": "0"}.get(
        context.text("/sys/devices/system/cpu/intel_pstate/no_turbo"), ""
    )
    group.identity["boost"] = boost == "1" if boost else absent()
    group.identity["smt"] = context.text("/sys/devices/system/cpu/smt/control") or absent()
    group.identity["swap"] = _swap(context)
    group.identity["shm"] = _shm(context)
    group.identity["cgroup"] = _cgroup(context)
    for prefix, places in (("limits", _LIMITS), ("loader", conf.LOADER)):
        group.identity.update({f"{prefix}.{path}": said for path, said in conf.files(context, places).items()})
    for name in ("nvidia_uvm", "nvidia"):
        for file in context.names(f"/sys/module/{name}/parameters"):
            group.identity[f"module.{name}.{file}"] = context.read(f"/sys/module/{name}/parameters/{file}")
    memory = dict(re.findall(r"(?m)^(\w+):\s+(\d+) kB", context.text("/proc/meminfo")))
    group.condition["memory_available_mib"] = int(memory.get("MemAvailable", 0)) >> 10
    group.condition["swap_used_mib"] = (int(memory.get("SwapTotal", 0)) - int(memory.get("SwapFree", 0))) >> 10
    group.condition["load_average"] = [float(v) for v in context.text("/proc/loadavg").split()[:3]]
    # What others take costs a simulated server nothing: its time is declared. Most are the other simulated hosts.
    simulated = context.manifest.get("engine") == "simulator"
    group.condition["foreign_load"] = absent() if simulated else meter.share()
    group.condition["clocks_mhz"] = _clocks(context)
    group.condition["temperatures_c"] = _temperatures(context)
    group.condition["limits_of_this_session"] = _limits(context, "self")
    running = servers(context)
    group.condition["servers"] = running if running else absent()
    for folder, value in jit_caches(context, environment).items():
        group.condition[f"jit_cache.{folder}"] = value
    for path in (str(context.root), "/dev/shm"):
        try:
            found = os.statvfs(path)
            group.condition[f"free_mib.{path}"] = found.f_bavail * found.f_frsize >> 20
        except OSError:
            continue
    return group


def _clocks(context: Context) -> Any:
    values = [float(v) for v in re.findall(r"(?m)^cpu MHz\s*:\s*([\d.]+)", context.text("/proc/cpuinfo"))]
    return {"min": round(min(values)), "max": round(max(values))} if values else absent()


def _temperatures(context: Context) -> Any:
    out = {}
    base = "/sys/class/hwmon"
    for chip in context.names(base):
        for name in context.names(f"{base}/{chip}"):
            if re.match(r"temp1_input$", name):
                value = context.text(f"{base}/{chip}/{name}")
                if value.lstrip("-").isdigit():
                    out[f"{chip}:{context.text(f'{base}/{chip}/name')}"] = int(value) // 1000
    return out or absent()
