"""Group ``hardware``: processors, memory, NUMA nodes and GPUs, as the kernel lists them."""

from __future__ import annotations

import re
from typing import Any, Dict, List

from .context import Context
from .values import Group, absent, unknown

GIB = 1 << 30
_DISPLAY = ("0x0300", "0x0302")  # VGA and 3D controllers
_NVIDIA = "0x10de"


def memory_gib(context: Context) -> Any:
    """Installed memory in GiB: the kernel's memory blocks; ``MemTotal`` (which differs a little from boot to boot),
    rounded."""
    size = context.text("/sys/devices/system/memory/block_size_bytes")
    if size:
        blocks = [n for n in context.names("/sys/devices/system/memory") if re.match(r"memory\d+$", n)]
        if blocks:
            return round(len(blocks) * int(size, 16) / GIB, 1)
    found = re.search(r"MemTotal:\s+(\d+) kB", context.text("/proc/meminfo"))
    return round(int(found.group(1)) * 1024 / GIB) if found else unknown("/proc/meminfo has no MemTotal")


def gpus(context: Context) -> List[Dict[str, str]]:
    """NVIDIA GPUs on the PCI bus: ``{address, device, subsystem, width_max, speed_max}``, by address."""
    out: List[Dict[str, str]] = []
    base = "/sys/bus/pci/devices"
    for address in context.names(base):
        where = f"{base}/{address}"
        if context.text(f"{where}/vendor") == _NVIDIA and context.text(f"{where}/class")[:6] in _DISPLAY:
            out.append(
                {
                    "address": address,
                    "device": context.text(f"{where}/device"),
                    "subsystem": context.text(f"{where}/subsystem_vendor") + context.text(f"{where}/subsystem_device"),
                    "width_max": context.text(f"{where}/max_link_width"),
                    "speed_max": context.text(f"{where}/max_link_speed"),
                }
            )
    return out


def observe(context: Context) -> Group:
    """The group ``hardware``."""
    group = Group("hardware")
    info = context.text("/proc/cpuinfo")
    first: Dict[str, str] = dict(re.findall(r"(?m)^([^:\n]+?)\s*:[ \t]*(.*)$", info.split("\n\n")[0]))
    group.identity["cpu.model"] = (
        first.get("model name") or first.get("CPU part") or unknown("/proc/cpuinfo names no model")
    )
    group.identity["cpu.flags"] = " ".join(
        sorted(
            f
            for f in first.get("flags", first.get("Features", "")).split()
            if f.startswith(("avx", "amx", "sve", "asimd", "fma", "sse4"))
        )
    )
    group.identity["cpu.threads"] = len(re.findall(r"(?m)^processor\s*:", info)) or unknown(
        "/proc/cpuinfo lists no processor"
    )
    sockets = set(re.findall(r"(?m)^physical id\s*:\s*(\d+)", info))
    cores = set(re.findall(r"(?ms)^physical id\s*:\s*(\d+).*?^core id\s*:\s*(\d+)", info))
    group.identity["cpu.sockets"] = len(sockets) or absent()
    group.identity["cpu.cores"] = len(cores) or absent()
    group.identity["memory.gib"] = memory_gib(context)
    nodes = [n for n in context.names("/sys/devices/system/node") if re.match(r"node\d+$", n)]
    group.identity["numa.nodes"] = {n: context.text(f"/sys/devices/system/node/{n}/cpulist") for n in nodes} or absent()
    found = gpus(context)
    group.identity["gpu.count"] = len(found) if found else absent()
    for i, gpu in enumerate(found):
        group.identity[f"gpu.{i}"] = gpu
    group.identity["machine"] = {
        k: v for k in ("sys_vendor", "product_name", "board_name") if (v := context.text(f"/sys/class/dmi/id/{k}"))
    } or absent()
    return group
