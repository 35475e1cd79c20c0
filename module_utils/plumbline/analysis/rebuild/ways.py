"""Which step mends a difference, or why nothing can from here."""

from __future__ import annotations

import re
from typing import Any, Mapping, Optional

from ...state.compare import AS_RECORDED
from ...state.impact import role_for
from ...state.redact import REDACTED
from ...state.values import is_absent
from .host import Host
from .steps import STRAY, Difference, text_of

_FIXED_RUNTIME = re.compile(r"cgroup|smt")
_BELOW = "the machine that this container runs on owns it: rebuild it there"


def way(lock: dict[str, Any], d: Difference, host: Host, inside: bool) -> tuple[Optional[str], str]:
    """(the step that mends a difference, or None and why nothing can)."""
    group, item = d["group"], d["item"]
    if group == "hardware":
        return None, "other hardware"
    if group == "container":
        return None, "the kind and image of a container are chosen by the machine that it runs on"
    if inside and (
        (group == "firmware_and_kernel" and not item.startswith("boot."))
        or (group == "driver" and item != "user_space")
    ):
        return None, _BELOW
    stray = STRAY.fullmatch(item)
    if stray and group in ("nccl", "engine_args", "runtime", "os_packages", "firmware_and_kernel"):
        return _file_way(lock, group, item, d, host)
    if group == "build":
        return _build_way(lock, d)
    if group == "files":
        return _files_way(lock, d)
    if group == "models":
        if item.partition("/")[0] in host.models:
            return "sglang_models", ""
        return None, "the model is none of this host's: sglang_server_target, sglang_server_drafts"
    if group == "engine_args":
        return None, "the inventory declares it"
    if group == "nccl":
        if item == "conf.NCCL_CONF_FILE" and _delivers(lock, "nccl_conf"):
            return "nccl_profile", ""
        if item == "conf.NCCL_CONF_FILE":
            return None, "a file that NCCL_CONF_FILE names: restore it, or take the variable out of the environment"
        return ("nccl_profile", "") if item.startswith("file.") else (None, "the inventory declares it")
    if group == "os_packages":
        return _package_way(d)
    if group == "firmware_and_kernel" and item.startswith("sysctl."):
        return ("sysctls", "") if not is_absent(d["was"]) else (None, "this kernel has more settings than the lock's")
    if group == "runtime" and _FIXED_RUNTIME.fullmatch(item):
        return None, "set by the machine's firmware or by what grants this host its share"
    role = role_for(group, item)
    return (role, "") if role else (None, "firmware or a property of the card")


def _delivers(lock: Mapping[str, Any], delivery: str) -> bool:
    return bool((lock.get("nccl") or {}).get("delivery") == delivery)


def _file_way(
    lock: Mapping[str, Any], group: str, item: str, d: Difference, host: Host
) -> tuple[Optional[str], str]:
    if is_absent(d["was"]):
        return "files", ""
    if item.startswith("pythonpath.") and "-sitecustomize/" in item and _delivers(lock, "sitecustomize"):
        return "nccl_profile", ""
    if REDACTED in str(text_of(lock, group, item)):
        return None, "the lock keeps no secrets, and the file holds one: restore it by hand"
    if group == "nccl" and item.startswith("conf."):
        if d["impact"] == "noise":
            return None, "comments alone: NCCL reads the same"
        return "files", ""
    if host.unit and item.startswith("unit.") and item.endswith(f"/{host.unit}"):
        return "sglang_server", ""
    if item.startswith(("limits.", "boot.", "loader.")):
        return "files", ""
    return None, "the lock keeps a digest of the file, not its text: restore it by hand"


def _build_way(lock: Mapping[str, Any], d: Difference) -> tuple[Optional[str], str]:
    if not lock.get("build"):
        return None, "the lock has no build lock: it was captured from a build that no lock known here had made"
    if d["item"] == "stdlib":
        return None, "the host's Python was changed: reinstall the package that owns its standard library"
    if d["item"].startswith("distribution.system."):
        return None, "it belongs to the Python below the build, which the host's packages own"
    return "sglang_build", ""


def _locked(lock: Mapping[str, Any], item: str) -> Mapping[str, Any]:
    """What the lock has of a file that is not as a wheel has it."""
    found = ((lock.get("installed") or {}).get("files") or {}).get(item)
    return found if isinstance(found, dict) else {}


def _files_way(lock: Mapping[str, Any], d: Difference) -> tuple[Optional[str], str]:
    item = d["item"]
    if item.startswith("stdlib/"):
        if d["was"] == AS_RECORDED or "text" in _locked(lock, item):
            return "files", ""
        return None, "start-up code of the host's Python: reinstall the package that owns it"
    if item.startswith("system/"):
        return None, "it belongs to the Python below the build, which the host's packages own"
    if not lock.get("build"):
        return None, "the lock has no build lock: it was captured from a build that no lock known here had made"
    if d["was"] != AS_RECORDED and any(item in str(r) for r in (lock.get("captured") or {}).get("not_rebuilt") or []):
        return None, "the lock could not keep that edit as a patch (captured.not_rebuilt says why)"
    return "sglang_build", ""


def _package_way(d: Difference) -> tuple[Optional[str], str]:
    if not d["item"].startswith("package."):
        return None, "it decides which versions apt takes next, not what is installed: restore it by hand"
    if is_absent(d["was"]):
        return None, "the state does not have this package: look at what needs it, then remove it by hand"
    return "packages", ""
