"""Group ``driver``: the NVIDIA driver as loaded, as installed, as set, and which GPUs it lets talk to which."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from typing import Any, Dict, List, Optional

from .context import Context, Output
from .hardware import gpus
from .values import Group, absent, unknown

_ITEMS = (
    "module",
    "module.flavour",
    "module.installed",
    "module.license",
    "user_space",
    "cuda",
    "parameters",
    "p2p.read",
    "p2p.write",
    "topology",
)
_LIBRARY = re.compile(r"^libnvidia-ml\.so\.(\d+\.\d+(?:\.\d+)?)$")
_LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/local/lib/x86_64-linux-gnu",
)
# What is set on a GPU (identity) and how it is doing (condition): item -> path in `nvidia-smi -q -x`.
_SET = {
    "name": "product_name",
    "vbios": "vbios_version",
    "persistence": "persistence_mode",
    "mig": "mig_mode/current_mig",
    "mig_pending": "mig_mode/pending_mig",
    "ecc": "ecc_mode/current_ecc",
    "compute_mode": "compute_mode",
    "memory": "fb_memory_usage/total",
    "bar1": "bar1_memory_usage/total",
    "power_limit": "gpu_power_readings/current_power_limit|power_readings/power_limit",
    "power_limit_default": "gpu_power_readings/default_power_limit|power_readings/default_power_limit",
    "clock_limit_graphics": "max_clocks/graphics_clock",
    "clock_limit_memory": "max_clocks/mem_clock",
    "applications_clock": "applications_clocks/graphics_clock",
    "uuid": "uuid",
    "link_width_max": "pci/pci_gpu_link_info/link_widths/max_link_width",
    "link_gen_max": "pci/pci_gpu_link_info/pcie_gen/max_link_gen",
    "gsp_firmware": "gsp_firmware_version",
    "addressing": "addressing_mode",
    "virtualization": "gpu_virtualization_mode/virtualization_mode",
    "locked_clocks": "clocks_event_reasons/clocks_event_reason_applications_clocks_setting",
}
_NOW = {
    "state": "performance_state",
    "link_gen": "pci/pci_gpu_link_info/pcie_gen/current_link_gen",
    "link_width": "pci/pci_gpu_link_info/link_widths/current_link_width",
    "replays": "pci/replay_counter",
    "memory_used": "fb_memory_usage/used",
    "utilization": "utilization/gpu_util",
    "temperature": "temperature/gpu_temp",
    "power": "gpu_power_readings/instant_power_draw|gpu_power_readings/power_draw|power_readings/power_draw",
    "clock_graphics": "clocks/graphics_clock",
    "clock_memory": "clocks/mem_clock",
    "recovery_action": "gpu_recovery_action",
    "remapped_pending": "remapped_rows/remapped_row_pending",
}
_SET.pop("locked_clocks")


def has_driver(context: Context) -> bool:
    """Whether anything of an NVIDIA GPU or driver is to be seen here."""
    return bool(gpus(context)) or context.path("/proc/driver/nvidia").exists() or user_space(context) != absent()


def start_tools(context: Context) -> None:
    """Start the slow tools, so that they work while the files are walked over."""
    if has_driver(context):
        context.start("smi", ["nvidia-smi", "-q", "-x"])
        context.start("topo", ["nvidia-smi", "topo", "-m"])
        context.start("p2p.read", ["nvidia-smi", "topo", "-p2p", "r"])
        context.start("p2p.write", ["nvidia-smi", "topo", "-p2p", "w"])
        context.start("modinfo.version", ["modinfo", "-F", "version", "nvidia"])
        context.start("modinfo.license", ["modinfo", "-F", "license", "nvidia"])


def user_space(context: Context) -> Any:
    """Version of the NVML library that is installed."""
    for folder in _LIBRARY_FOLDERS:
        found = sorted(m.group(1) for name in context.names(folder) if (m := _LIBRARY.match(name)))
        if found:
            return found[0] if len(found) == 1 else found
    return absent()


def loaded_module(text: str) -> Dict[str, Any]:
    """``{version, flavour}`` of ``/proc/driver/nvidia/version``; values None where the text does not say."""
    line = next((x for x in text.splitlines() if x.startswith("NVRM version:")), "")
    version = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", line)
    flavour = "open" if "Open Kernel Module" in line else "proprietary" if "Kernel Module" in line else None
    return {"version": version.group(1) if version else None, "flavour": flavour}


def matrix(text: str) -> Optional[Dict[str, str]]:
    """``{"0-1": "OK", ...}`` for each pair of GPUs of a ``nvidia-smi topo`` table; None if there is no table."""
    clean = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = [line.split() for line in clean.splitlines() if re.match(r"^\s*GPU\d+\s", line)]
    head = next(
        (x for x in lines if len(x) > 1 and x[1].startswith("GPU")),
        lines[0] if lines and len(lines[0]) and lines[0][-1].startswith("GPU") else None,
    )
    if head is None:
        return None
    columns = [c for c in head if re.fullmatch(r"GPU\d+", c)]
    out: Dict[str, str] = {}
    for row in lines:
        if row is head or len(row) < 2:
            continue
        for column, cell in zip(columns, row[1 : 1 + len(columns)]):
            if column != row[0] and cell != "X":
                out[f"{row[0][3:]}-{column[3:]}"] = cell
    return out if out or len(columns) == 1 else None


def _pick(node: ElementTree.Element, paths: str) -> Optional[str]:
    for path in paths.split("|"):
        found = node.findtext(path)
        if found is not None and found.strip() not in ("N/A", "[N/A]", ""):
            return found.strip()
    return None


def gpu_items(text: str) -> List[Dict[str, Dict[str, Any]]]:
    """For each GPU of ``nvidia-smi -q -x`` ``{"set": {...}, "now": {...}}``. Raises ElementTree.ParseError."""
    out: List[Dict[str, Dict[str, Any]]] = []
    for node in ElementTree.fromstring(text).findall("gpu"):
        found: Dict[str, Dict[str, Any]] = {"set": {}, "now": {}}
        for kind, table in (("set", _SET), ("now", _NOW)):
            for item, path in table.items():
                value = _pick(node, path)
                found[kind][item] = absent() if value is None else value
        reasons = node.find("clocks_event_reasons")
        reasons = reasons if reasons is not None else node.find("clocks_throttle_reasons")
        found["now"]["event_reasons"] = sorted(
            r.tag.replace("clocks_event_reason_", "").replace("clocks_throttle_reason_", "")
            for r in (reasons if reasons is not None else [])
            if (r.text or "").strip() == "Active"
        )
        found["now"]["processes"] = len(node.findall("processes/process_info"))
        out.append(found)
    return out


def _tool(group: Group, item: str, output: Output) -> None:
    found = matrix(output.out) if output.rc == 0 else None
    group.identity[item] = (
        found if found is not None else unknown(output.why if output.rc != 0 else "no table in the answer")
    )


def observe(context: Context) -> Group:
    """The group ``driver``; every item absent on a host without NVIDIA hardware and driver."""
    group = Group("driver")
    if not has_driver(context):
        group.identity.update({item: absent() for item in _ITEMS})
        return group
    start_tools(context)
    text = context.read("/proc/driver/nvidia/version")
    loaded = loaded_module(text) if isinstance(text, str) else {}
    for item, key in (("module", "version"), ("module.flavour", "flavour")):
        group.identity[item] = loaded.get(key) or (
            text if isinstance(text, dict) else unknown("/proc/driver/nvidia/version does not say")
        )
    for item, name in (("module.installed", "modinfo.version"), ("module.license", "modinfo.license")):
        output = context.tools[name].result()
        if output.rc == 0:
            group.identity[item] = output.out.strip()
        else:
            group.identity[item] = absent() if "not found" in output.err else unknown(output.why)
    group.identity["user_space"] = user_space(context)
    parameters = context.read("/proc/driver/nvidia/params")
    group.identity["parameters"] = (
        dict(re.findall(r'(?m)^(\w+): "?(.*?)"?$', parameters)) if isinstance(parameters, str) else parameters
    )
    smi = context.tools["smi"].result()
    try:
        if smi.rc != 0:
            raise ValueError(smi.why)
        group.identity["cuda"] = ElementTree.fromstring(smi.out).findtext("cuda_version") or absent()
        for i, found in enumerate(gpu_items(smi.out)):
            group.identity.update({f"gpu.{i}.{k}": v for k, v in found["set"].items()})
            group.condition.update({f"gpu.{i}.{k}": v for k, v in found["now"].items()})
    except (ValueError, ElementTree.ParseError) as e:
        group.identity["gpus"] = unknown(f"nvidia-smi: {e}")
        group.identity["cuda"] = unknown("nvidia-smi gave no answer")
    _tool(group, "p2p.read", context.tools["p2p.read"].result())
    _tool(group, "p2p.write", context.tools["p2p.write"].result())
    _tool(group, "topology", context.tools["topo"].result())
    return group
