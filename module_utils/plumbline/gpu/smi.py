"""``nvidia-smi -q`` (text and XML) and ``nvidia-smi --query-gpu=... --format=csv`` as one and the same kind of
record.

Names of fields changed over drivers ("Clocks Throttle Reasons" became "Clocks Event Reasons" with 535, "Power
Readings" became "GPU Power Readings", ...): both are read. A field that this driver does not print is null, never 0.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from typing import Any, Dict, List, Optional, Tuple

# Our names of the reasons for which clocks are held down, by the words of nvidia-smi's text and XML.
REASONS = {
    "idle": "gpu_idle",
    "gpu_idle": "gpu_idle",
    "applications_clocks_setting": "applications_clocks_setting",
    "sw_power_cap": "sw_power_cap",
    "sw_power_capping": "sw_power_cap",
    "hw_slowdown": "hw_slowdown",
    "hw_thermal_slowdown": "hw_thermal_slowdown",
    "hw_therm_slowdown": "hw_thermal_slowdown",
    "hw_power_brake_slowdown": "hw_power_brake_slowdown",
    "hw_power_brake": "hw_power_brake_slowdown",
    "hw_power_braking": "hw_power_brake_slowdown",
    "sync_boost": "sync_boost",
    "sw_thermal_slowdown": "sw_thermal_slowdown",
    "sw_therm_slowdown": "sw_thermal_slowdown",
    "display_clock_setting": "display_clock_setting",
    "display_clocks_setting": "display_clock_setting",
}
# NVML's bits (nvml.h, nvmlClocksEventReason*).
BITS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
# Reasons that say that something holds the GPU back; idling and clocks that somebody set do not.
THROTTLES = (
    "sw_power_cap",
    "hw_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "sw_thermal_slowdown",
    "sync_boost",
)
_NOTHING = (
    "",
    "n/a",
    "[n/a]",
    "not supported",
    "[not supported]",
    "unknown error",
    "[unknown error]",
    "insufficient permissions",
    "[insufficient permissions]",
    "requested functionality has been deprecated",
    "none",
)


def reasons_of(bits: int) -> List[str]:
    """Names of the reasons in NVML's bit field."""
    return [name for bit, name in sorted(BITS.items()) if bits & bit]


def key_of(words: str) -> str:
    """``HW Thermal Slowdown`` -> ``hw_thermal_slowdown``; a unit in brackets is dropped."""
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"\[[^\]]*\]", "", words).strip().lower()).strip("_")


def text_or_none(value: Optional[str]) -> Optional[str]:
    return None if value is None or value.strip().lower() in _NOTHING else value.strip()


def number(value: Optional[str]) -> Optional[float]:
    """The number in ``97887 MiB``, ``16x``, ``81.18 W``, ``37 %``; null for N/A and the like. Integers stay
    integers.
    """
    text = text_or_none(value)
    found = re.match(r"-?\d+(?:\.\d+)?", text) if text else None
    if not found:
        return None
    return float(found.group()) if "." in found.group() else int(found.group())


def _switch(value: Optional[str]) -> Optional[bool]:
    text = (text_or_none(value) or "").lower()
    return {"enabled": True, "active": True, "yes": True, "disabled": False, "not active": False, "no": False}.get(
        text
    )


Tree = Dict[str, Any]


def _text_tree(text: str) -> Tuple[Tree, List[Tuple[str, Tree]]]:
    """The head's fields and each GPU's tree from the indented text. Keys are ``key_of`` their words."""
    head: Tree = {}
    gpus: List[Tuple[str, Tree]] = []
    stack: List[Tuple[int, Tree]] = [(-1, head)]
    child: Tree
    for line in text.replace("\r", "").split("\n"):
        if not line.strip() or line.startswith("="):
            continue
        indent = len(line) - len(line.lstrip(" \t"))
        gpu = re.match(r"\s*GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*$", line)
        if gpu:
            tree: Tree = {}
            gpus.append((gpu.group(1), tree))
            stack = [(-1, head), (indent, tree)]
            continue
        while len(stack) > 1 and indent <= stack[-1][0]:
            stack.pop()
        name, colon, value = (
            line.strip().partition(":") if re.search(r"\S\s*: |\S\s*:$", line) else (line.strip(), "", "")
        )
        key, parent = key_of(name), stack[-1][1]
        if colon and value.strip():
            if key == "process_id":
                child = {"pid": value.strip()}
                parent.setdefault("_processes", []).append(child)
                stack.append((indent, child))
                continue
            parent.setdefault(key, value.strip())
            # A value may have details below it: "HW Slowdown : Active" is followed by the kinds of slowdown, further
            # in.
            stack.append((indent, parent))
        else:
            known = parent.get(key)
            child = known if isinstance(known, dict) else {}
            parent[key] = child
            stack.append((indent, child))
    return head, gpus


_XML_SECTION = {
    "pci": "pci",
    "pci_gpu_link_info": "gpu_link_info",
    "pcie_gen": "pcie_generation",
    "link_widths": "link_width",
    "gpu_power_readings": "gpu_power_readings",
    "power_readings": "power_readings",
    "mig_mode": "mig_mode",
    "ecc_mode": "ecc_mode",
}
_XML_FIELD = {
    "max_link_gen": "max",
    "current_link_gen": "current",
    "device_current_link_gen": "device_current",
    "max_device_link_gen": "device_max",
    "max_host_link_gen": "host_max",
    "max_link_width": "max",
    "current_link_width": "current",
    "replay_counter": "replays_since_reset",
    "current_mig": "current",
    "pending_mig": "pending",
    "current_ecc": "current",
    "pending_ecc": "pending",
    "gpu_util": "gpu",
    "memory_util": "memory",
    "gpu_temp": "gpu_current_temp",
    "memory_temp": "memory_current_temp",
    "average_power_draw": "average_power_draw",
    "instant_power_draw": "instantaneous_power_draw",
    "graphics_clock": "graphics",
    "sm_clock": "sm",
    "mem_clock": "memory",
    "gpu_recovery_action": "gpu_recovery_action",
}
_REASON_PREFIX = re.compile(r"^clocks_(?:event|throttle)_reasons?_(?:counters_)?")


def _xml_tree(element: ET.Element) -> Tree:
    tree: Tree = {}
    for child in element:
        if child.tag == "processes":
            tree["_processes"] = [
                {_PROCESS.get(e.tag, e.tag): e.text or "" for e in info} for info in child.iter("process_info")
            ]
            continue
        key = (
            _REASON_PREFIX.sub("", child.tag)
            if child.tag not in ("clocks_event_reasons", "clocks_throttle_reasons", "clocks_event_reasons_counters")
            else child.tag
        )
        if len(child):
            tree[_XML_SECTION.get(key, key)] = _xml_tree(child)
        elif child.tag != "supported_graphics_clock":
            tree.setdefault(_XML_FIELD.get(key, key), (child.text or "").strip())
    return tree


_PROCESS = {"process_name": "name", "used_memory": "used_gpu_memory"}


def _get(tree: Any, *path: str) -> Any:
    for key in path:
        if not isinstance(tree, dict):
            return None
        tree = tree.get(key)
    return tree


def _first(tree: Tree, *paths: Tuple[str, ...]) -> Optional[str]:
    for path in paths:
        value = _get(tree, *path)
        if isinstance(value, str) and text_or_none(value) is not None:
            return value
    return None


def _numbers(tree: Any, names: Mapping[str, str]) -> Dict[str, Any]:
    return {ours: number(_get(tree, theirs)) for ours, theirs in names.items()}


def _process(entry: Mapping[str, str]) -> Dict[str, Any]:
    return {
        "pid": number(entry.get("pid")),
        "name": text_or_none(entry.get("name")),
        "type": text_or_none(entry.get("type")),
        "memory_mib": number(entry.get("used_gpu_memory")),
    }


def _record(index: int, bus_id: str, tree: Tree) -> Dict[str, Any]:
    """One GPU's record from either tree."""
    link = _get(tree, "pci", "gpu_link_info") or {}
    section = "clocks_event_reasons" if "clocks_event_reasons" in tree else "clocks_throttle_reasons"
    reasons = {
        REASONS[k]: _switch(v) for k, v in (tree.get(section) or {}).items() if k in REASONS and isinstance(v, str)
    }
    counters = {
        REASONS[k]: number(v) for k, v in (tree.get("clocks_event_reasons_counters") or {}).items() if k in REASONS
    }
    power = tree.get("gpu_power_readings") or tree.get("power_readings") or {}
    draw = _first({"p": power}, ("p", "instantaneous_power_draw"), ("p", "power_draw"), ("p", "average_power_draw"))
    limits = {
        "limit": ("current_power_limit", "power_limit", "enforced_power_limit"),
        "default_limit": ("default_power_limit",),
        "min_limit": ("min_power_limit",),
        "max_limit": ("max_power_limit",),
    }
    pcie = {
        "gen": _numbers(
            _get(link, "pcie_generation"),
            {k: k for k in ("current", "max", "device_current", "device_max", "host_max")},
        ),
        "width": _numbers(_get(link, "link_width"), {"current": "current", "max": "max"}),
        "replays": number(_get(tree, "pci", "replays_since_reset")),
    }
    processes = [_process(p) for p in tree.get("_processes") or _get(tree, "processes", "_processes") or []]
    return {
        "index": index,
        "bus_id": bus_id,
        "name": _first(tree, ("product_name",)),
        "uuid": _first(tree, ("uuid",), ("gpu_uuid",)),
        "persistence": _switch(tree.get("persistence_mode")),
        "mig": {
            "current": _switch(_get(tree, "mig_mode", "current")),
            "pending": _switch(_get(tree, "mig_mode", "pending")),
        },
        "ecc": _switch(_get(tree, "ecc_mode", "current")),
        "pcie": pcie,
        "pstate": _first(tree, ("performance_state",)),
        "reasons": [name for name, on in reasons.items() if on],
        "reasons_known": sorted(reasons),
        "counters_us": counters,
        "memory_mib": _numbers(tree.get("fb_memory_usage"), {k: k for k in ("total", "reserved", "used", "free")}),
        "bar1_mib": _numbers(tree.get("bar1_memory_usage"), {"total": "total", "used": "used"}),
        "utilization": _numbers(tree.get("utilization"), {"gpu": "gpu", "memory": "memory"}),
        "temperature_c": _numbers(
            tree.get("temperature"), {"gpu": "gpu_current_temp", "memory": "memory_current_temp"}
        ),
        "power_w": {
            "draw": number(draw),
            **{k: number(_first({"p": power}, *(("p", n) for n in v))) for k, v in limits.items()},
        },
        "clocks_mhz": _numbers(tree.get("clocks"), {"sm": "sm", "memory": "memory", "graphics": "graphics"}),
        "max_clocks_mhz": _numbers(tree.get("max_clocks"), {"sm": "sm", "memory": "memory"}),
        "recovery_action": _first(tree, ("gpu_recovery_action",)),
        "processes": processes,
    }


def parse_query(text: str) -> Dict[str, Any]:
    """``nvidia-smi -q`` as text or XML: ``{driver, cuda, attached, gpus: [record]}``. Raises ValueError if it is
    neither.
    """
    if "<nvidia_smi_log" in text:
        return _parse_xml(text)
    head, gpus = _text_tree(text)
    if not gpus and "driver_version" not in head:
        raise ValueError("neither the text nor the XML of nvidia-smi -q")
    return {
        "driver": text_or_none(head.get("driver_version")),
        "cuda": text_or_none(head.get("cuda_version")),
        "attached": number(head.get("attached_gpus")),
        "gpus": [_record(i, bus, tree) for i, (bus, tree) in enumerate(gpus)],
    }


def _parse_xml(text: str) -> Dict[str, Any]:
    # No DTD is fetched and no entity is declared in it: the declaration is dropped before parsing.
    body = re.sub(r"<!DOCTYPE[^>]*>", "", text[text.index("<nvidia_smi_log") :])
    root = ET.fromstring(body)
    gpus = [_record(i, gpu.get("id") or "", _xml_tree(gpu)) for i, gpu in enumerate(root.iter("gpu"))]
    return {
        "driver": text_or_none(root.findtext("driver_version")),
        "cuda": text_or_none(root.findtext("cuda_version")),
        "attached": number(root.findtext("attached_gpus")),
        "gpus": gpus,
    }


def idle(gpu: Mapping[str, Any]) -> Optional[bool]:
    """Whether the GPU idles: by its own word, else by its performance state; null if it says neither."""
    if "gpu_idle" in gpu["reasons_known"]:
        return "gpu_idle" in gpu["reasons"]
    state = re.match(r"P(\d+)", gpu["pstate"] or "")
    return int(state.group(1)) >= 8 if state else None


def summary(document: Mapping[str, Any]) -> Dict[str, Any]:
    """A short reading of ``parse_query``: the worst of all GPUs.

    ``{gpus, driver, idle, pcie_gen: [current, max], width: [current, max], throttle: [reasons], counter_us, narrow:
    [index]}``; ``counter_us`` is how long the active throttles have held, of the GPU with the most. A low PCIe
    generation while idle is power saving, so only a narrow width, or a low generation under load, counts as
    ``narrow``.
    """
    gpus = document["gpus"]
    states = [idle(g) for g in gpus]
    links = sorted(
        ((g["pcie"]["gen"]["current"], g["pcie"]["gen"]["max"]) for g in gpus), key=lambda p: (p[0] is None, p)
    )
    widths = sorted(
        ((g["pcie"]["width"]["current"], g["pcie"]["width"]["max"]) for g in gpus), key=lambda p: (p[0] is None, p)
    )
    throttle = [name for name in REASONS.values() if name in THROTTLES and any(name in g["reasons"] for g in gpus)]
    held = [sum(g["counters_us"].get(name) or 0 for name in g["reasons"] if name in THROTTLES) for g in gpus]
    return {
        "gpus": len(gpus),
        "driver": document["driver"],
        "idle": None if not states or None in states else all(states),
        "pcie_gen": list(links[0]) if links else None,
        "width": list(widths[0]) if widths else None,
        "throttle": list(dict.fromkeys(throttle)),
        "counter_us": max(held, default=0),
        "narrow": [g["index"] for g, resting in zip(gpus, states) if _narrow(g["pcie"], resting)],
    }


def _narrow(pcie: Mapping[str, Any], resting: Optional[bool]) -> bool:
    width, gen = pcie["width"], pcie["gen"]
    if width["current"] is not None and width["max"] is not None and width["current"] < width["max"]:
        return True
    return resting is False and None not in (gen["current"], gen["max"]) and gen["current"] < gen["max"]
