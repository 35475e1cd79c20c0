"""The steps of a rebuild: what each mends, what it is given, and which of them take effect with a reboot only."""

from __future__ import annotations

import re
from typing import Any, Callable, Mapping

from ...state.compare import AS_RECORDED
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
FULL = "a full run runs every role that the lock says something of"
_REBOOT = {
    "firmware_and_kernel": re.compile(r"kernel|kernel\.build|command_line|iommu|acs"),
    "driver": re.compile(r"module|module\..*|parameters"),
    "runtime": re.compile(r"module\..*"),
}
# A file by its absolute path; a stray one is moved aside.
STRAY = re.compile(r"(?:conf|pythonpath|unit|limits|apt|boot|loader)\.(?P<path>[/~].*)")


def needs_reboot(d: Mapping[str, Any]) -> bool:
    """Whether what mends a difference takes effect with the next boot of the machine only."""
    pattern = _REBOOT.get(d["group"])
    return bool(pattern and pattern.fullmatch(d["item"]))


def make_step(lock: Mapping[str, Any], name: str, items: list[Difference], why: str = "") -> dict[str, Any]:
    own = name in ("files", "packages", "sysctls")
    return {
        "step": name,
        "role": "plumbline_rebuild" if own else name,
        "tasks": f"{name}.yml" if own else "main.yml",
        "why": why or _WHY[name],
        "items": items,
        "data": _DATA[name](lock, items) if name in _DATA else None,
    }


def _files_data(lock: Mapping[str, Any], items: list[Difference]) -> list[dict[str, Any]]:
    """``[{path, content: text|null, link?}]``: null for a file that shall not be there; with ``link`` the path is a
    link to there, and what it leads to has the content. ``stdlib/NAME`` is below the standard
    library of the build's Python, ``~`` the home of the server's user."""
    out = []
    for d in items:
        stray = STRAY.fullmatch(d["item"])
        entry: dict[str, Any] = {"path": stray["path"] if stray else d["item"], "content": None}
        if not is_absent(d["was"]) and d["group"] == "nccl":
            settings = lock["observed"]["nccl"][d["item"]]["variables"]
            entry["content"] = "".join(f"{k}={v}\n" for k, v in settings.items())
        elif not is_absent(d["was"]) and d["item"].startswith(("limits.", "boot.", "loader.")):
            own = d["item"].startswith("limits.")
            said = lock["limits"][entry["path"]] if own else lock["observed"][d["group"]][d["item"]]
            entry["content"] = "".join(f"{line}\n" for line in said)
        elif d["was"] != AS_RECORDED and d["group"] == "files":
            kept = lock["installed"]["files"][d["item"]]
            entry.update(content=kept["text"], **({"link": kept["link"]} if "link" in kept else {}))
        out.append(entry)
    return out


def _packages_data(lock: Mapping[str, Any], items: list[Difference]) -> list[dict[str, Any]]:
    """``[{name, version, pinned: as apt takes it, held: bool}]`` as the lock has them."""
    names = [d["item"].partition(".")[2] for d in items]
    found = [(n, lock["packages"][n]) for n in names]
    return [
        {"name": n, "version": e["version"], "pinned": f"{n}={e['version']}", "held": bool(e.get("held"))}
        for n, e in found
    ]


def _sysctls_data(lock: Mapping[str, Any], items: list[Difference]) -> dict[str, str]:
    names = [d["item"].partition(".")[2] for d in items]
    return {n: lock["kernel"]["sysctls"][n] for n in names}


def _models_data(lock: Mapping[str, Any], items: list[Difference]) -> list[str]:
    """Names of the models with a file that is not the locked one; all of the lock's where nothing is known to be so."""
    return sorted({d["item"].partition("/")[0] for d in items} or set(lock.get("models") or {}))


def _host_data(_lock: Mapping[str, Any], items: list[Difference]) -> dict[str, list[str]]:
    """``{kernel_parameters}``: words of the lock's kernel command line that the host lacks."""
    words = [d["was"] for d in items if d["item"] == "command_line" and isinstance(d["was"], list)]
    return {"kernel_parameters": [w for w in (words[0] if words else []) if not w.startswith(("root=", "BOOT_IMAGE="))]}


_DATA: dict[str, Callable[[Mapping[str, Any], list[Difference]], Any]] = {
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
