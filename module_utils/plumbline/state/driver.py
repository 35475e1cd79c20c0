"""Group ``driver``: the NVIDIA driver as loaded, as installed, as set, and which GPUs it lets talk to which."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from typing import Any, Callable, Dict, List, Tuple

from ..gpu import smi, topology
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
# Set on a GPU and not in the record of ``gpu.smi``: item -> path in ``nvidia-smi -q -x``.
_MORE = {
    "vbios": "vbios_version",
    "compute_mode": "compute_mode",
    "gsp_firmware": "gsp_firmware_version",
    "addressing": "addressing_mode",
    "virtualization": "gpu_virtualization_mode/virtualization_mode",
    "applications_clock": "applications_clocks/graphics_clock",
}


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


def pairs(table: Dict[str, Dict[str, str]], gpus: List[str]) -> Dict[str, str]:
    """``{"0-1": cell, ...}`` for each ordered pair of GPUs of a parsed table."""
    return {f"{a[3:]}-{b[3:]}": table[a][b] for a in gpus for b in gpus if a != b and b in table[a]}


def _or_absent(value: Any) -> Any:
    return absent() if value is None else value


def gpu_items(text: str) -> Tuple[Any, List[Tuple[Dict[str, Any], Dict[str, Any]]]]:
    """The CUDA version of ``nvidia-smi -q -x`` and, for each GPU, what is set on it and how it is doing.

    Raises ValueError or ElementTree.ParseError if the text is no such answer.
    """
    document = smi.parse_query(text)
    nodes = ElementTree.fromstring(text[text.index("<nvidia_smi_log") :]).findall("gpu")
    out: List[Tuple[Dict[str, Any], Dict[str, Any]]] = []
    for gpu, node in zip(document["gpus"], nodes):
        fixed = {
            "name": gpu["name"],
            "uuid": gpu["uuid"],
            "persistence": gpu["persistence"],
            "mig": gpu["mig"]["current"],
            "mig_pending": gpu["mig"]["pending"],
            "ecc": gpu["ecc"],
            "memory_mib": gpu["memory_mib"].get("total"),
            "bar1_mib": gpu["bar1_mib"].get("total"),
            "power_limit_w": gpu["power_w"]["limit"],
            "power_limit_default_w": gpu["power_w"]["default_limit"],
            "clock_limit_mhz": gpu["max_clocks_mhz"],
            "link_width_max": gpu["pcie"]["width"].get("max"),
            "link_gen_max": gpu["pcie"]["gen"].get("max"),
        }
        for item, path in _MORE.items():
            fixed[item] = smi.text_or_none(node.findtext(path))
        moving = {
            "state": gpu["pstate"],
            "link_gen": gpu["pcie"]["gen"].get("current"),
            "link_width": gpu["pcie"]["width"].get("current"),
            "replays": gpu["pcie"]["replays"],
            "memory_used_mib": gpu["memory_mib"].get("used"),
            "utilization": gpu["utilization"].get("gpu"),
            "temperature_c": gpu["temperature_c"],
            "power_w": gpu["power_w"]["draw"],
            "clocks_mhz": gpu["clocks_mhz"],
            "event_reasons": gpu["reasons"],
            "counters_us": gpu["counters_us"],
            "remapped_pending": smi.text_or_none(node.findtext("remapped_rows/remapped_row_pending")),
            "recovery_action": smi.text_or_none(node.findtext("gpu_recovery_action")),
            "processes": len(gpu["processes"]),
        }
        out.append(({k: _or_absent(v) for k, v in fixed.items()}, {k: _or_absent(v) for k, v in moving.items()}))
    return _or_absent(document["cuda"]), out


def _table(group: Group, item: str, output: Output, parse: Callable[[str], Dict[str, Any]]) -> None:
    try:
        if output.rc != 0:
            raise ValueError(output.why)
        found = parse(output.out)
        group.identity[item] = pairs(found["matrix"], found["gpus"])
    except ValueError as e:
        group.identity[item] = unknown(e)


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
            # In a container there are no modules for the kernel that runs: the machine below has them.
            here = context.path(f"/lib/modules/{context.text('/proc/sys/kernel/osrelease')}").is_dir()
            group.identity[item] = absent() if "not found" in output.err or not here else unknown(output.why)
    group.identity["user_space"] = user_space(context)
    parameters = context.read("/proc/driver/nvidia/params")
    group.identity["parameters"] = (
        dict(re.findall(r'(?m)^(\w+): "?(.*?)"?$', parameters)) if isinstance(parameters, str) else parameters
    )
    answer = context.tools["smi"].result()
    try:
        if answer.rc != 0:
            raise ValueError(answer.why)
        group.identity["cuda"], found = gpu_items(answer.out)
        for i, (fixed, moving) in enumerate(found):
            group.identity.update({f"gpu.{i}.{k}": v for k, v in fixed.items()})
            group.condition.update({f"gpu.{i}.{k}": v for k, v in moving.items()})
    except (ValueError, ElementTree.ParseError) as e:
        group.identity["gpus"] = unknown(f"nvidia-smi: {e}")
        group.identity["cuda"] = unknown("nvidia-smi gave no answer")
    _table(group, "p2p.read", context.tools["p2p.read"].result(), topology.parse_p2p)
    _table(group, "p2p.write", context.tools["p2p.write"].result(), topology.parse_p2p)
    _table(group, "topology", context.tools["topo"].result(), topology.parse_matrix)
    return group
