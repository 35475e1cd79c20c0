"""The steps of a rebuild: what each mends, what it is given, and which of them take effect with a reboot only."""

from __future__ import annotations

import re
from typing import Any, Callable, Mapping, Optional

from ...state.compare import AS_RECORDED
from ...state.redact import REDACTED
from ...state.values import is_absent

Difference = dict[str, Any]
# In the order in which they run. Those without a role of their own are task files of plumbline_rebuild.
STEPS = (
    "files",
    "sglang_build",
    "packages",
    "gpu_driver",
    "gpu_host",
    "sysctls",
    "sglang_models",
    "nccl_profile",
    "sglang_server",
)
_WHY = {
    "files": "files that the state does not have are moved aside, conf files that it has are written again",
    "sglang_build": "the build is not the locked one, or is not as it was made",
    "packages": "packages are not installed and held as the lock says",
    "gpu_driver": "the driver is not the locked one",
    "gpu_host": "settings of the host are not those of the lock",
    "sysctls": "sysctls are not those of the lock",
    "sglang_models": "files of a model are not the locked ones",
    "nccl_profile": "the delivered NCCL profile is not that of the lock",
    "sglang_server": "what starts the server is not as the lock has it",
}
TAKEN = "the inventory declares otherwise than the lock, whose values this run takes"
FULL = "a full run runs every role that the lock says something of"
_REBOOT = {
    "firmware_and_kernel": re.compile(r"kernel|kernel\.build|command_line|iommu|acs"),
    "driver": re.compile(r"module|module\..*|parameters"),
    "runtime": re.compile(r"module\..*"),
}
# A file by its absolute path; a stray one is moved aside.
STRAY = re.compile(r"(?:conf|pythonpath|unit|limits|apt|boot|loader)\.(?P<path>[/~].*)")


# Written by the role gpu_host.
KERNEL_PARAMETERS_FILE = "/etc/default/grub.d/90-plumbline.cfg"


def needs_reboot(d: Mapping[str, Any]) -> bool:
    """Whether what mends a difference takes effect with the next boot of the machine only."""
    pattern = _REBOOT.get(d["group"])
    return bool(pattern and pattern.fullmatch(d["item"]))


def make_step(
    lock: Mapping[str, Any], name: str, items: list[Difference], why: str, state: Mapping[str, Any]
) -> dict[str, Any]:
    own = name in ("files", "packages", "sysctls")
    return {
        "step": name,
        "role": "plumbline_rebuild" if own else name,
        "tasks": f"{name}.yml" if own else "main.yml",
        "why": why or _WHY[name],
        "items": items,
        "data": _DATA[name](lock, items, state) if name in _DATA else None,
    }


def text_of(lock: Mapping[str, Any], group: str, item: str) -> Optional[str]:
    """The text that a lock has of a configuration file, None where it has none."""
    observed = ((lock.get("observed") or {}).get(group) or {}).get(item)
    if group == "nccl" and isinstance(observed, dict) and "variables" in observed:
        return "".join(f"{k}={v}\n" for k, v in observed["variables"].items())
    if item.startswith("limits."):
        observed = (lock.get("limits") or {}).get(item.partition(".")[2])
    if item.startswith(("limits.", "boot.", "loader.")) and isinstance(observed, list):
        return "".join(f"{line}\n" for line in observed)
    return None


def _files_data(lock: Mapping[str, Any], items: list[Difference], _state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """``[{path, content: text|null, link?}]``: null for a file that shall not be there; with ``link`` the path is a
    link to there, and what it leads to has the content. ``stdlib/NAME`` is below the standard
    library of the build's Python, ``~`` the home of the server's user."""
    out = []
    for d in items:
        stray = STRAY.fullmatch(d["item"])
        entry: dict[str, Any] = {"path": stray["path"] if stray else d["item"], "content": None}
        if d["group"] == "files" and not is_absent(d["was"]) and d["was"] != AS_RECORDED:
            kept = lock["installed"]["files"][d["item"]]
            entry.update(content=kept["text"], **({"link": kept["link"]} if "link" in kept else {}))
        elif d["group"] != "files" and not is_absent(d["was"]):
            entry["content"] = text_of(lock, d["group"], d["item"])
        out.append(entry)
    return out


def _packages_data(
    lock: Mapping[str, Any], items: list[Difference], _state: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """``[{name, version, pinned: as apt takes it, held: bool}]`` as the lock has them."""
    names = [d["item"].partition(".")[2] for d in items]
    found = [(n, lock["packages"][n]) for n in names]
    return [
        {"name": n, "version": e["version"], "pinned": f"{n}={e['version']}", "held": bool(e.get("held"))}
        for n, e in found
    ]


def _sysctls_data(lock: Mapping[str, Any], items: list[Difference], _state: Mapping[str, Any]) -> dict[str, Any]:
    """``{set: values that differ, kept: all of the lock}``: those that an earlier rebuild set stay in its file."""
    kept = {n: v for n, v in lock["kernel"]["sysctls"].items() if REDACTED not in str(v)}
    names = [d["item"].partition(".")[2] for d in items]
    return {"set": {n: kept[n] for n in names if n in kept}, "kept": kept}


def _models_data(lock: Mapping[str, Any], items: list[Difference], _state: Mapping[str, Any]) -> list[str]:
    """Names of the models with a file that is not the locked one; all of the lock's where nothing is known to be so."""
    return sorted({d["item"].partition("/")[0] for d in items} or set(lock.get("models") or {}))


def _host_data(lock: Mapping[str, Any], _items: list[Difference], state: Mapping[str, Any]) -> dict[str, list[str]]:
    """``{kernel_parameters}``: words of the lock's kernel command line that the host lacks, or that stand in the file
    by which an earlier rebuild gave them to it: left out, they would be taken away again."""
    identity = (state["groups"].get("firmware_and_kernel") or {}).get("identity", {})
    now, ours = identity.get("command_line"), identity.get(f"boot.{KERNEL_PARAMETERS_FILE}")
    given = " ".join(ours).replace('"', " ").split() if isinstance(ours, list) else []
    has = set(now if isinstance(now, list) else []) - set(given)
    words = (lock.get("kernel") or {}).get("command_line") or []
    wanted = [w for w in words if not w.startswith(("root=", "BOOT_IMAGE=")) and REDACTED not in w]
    return {"kernel_parameters": [w for w in wanted if w not in has]}


_DATA: dict[str, Callable[[Mapping[str, Any], list[Difference], Mapping[str, Any]], Any]] = {
    "files": _files_data,
    "packages": _packages_data,
    "sysctls": _sysctls_data,
    "sglang_models": _models_data,
    "gpu_host": _host_data,
}


def of_lock(lock: Mapping[str, Any], inside: bool = False) -> list[str]:
    """The roles that a lock says something of; ``inside``: for a container."""
    kernel = lock.get("kernel") or {}
    has = {
        "sglang_build": lock.get("build"),
        "gpu_driver": lock.get("driver"),
        "gpu_host": (kernel or lock.get("limits")) and not inside,
        "sglang_models": lock.get("models"),
        "nccl_profile": lock.get("nccl"),
        "sglang_server": lock.get("server"),
    }
    return [name for name, said in has.items() if said]
