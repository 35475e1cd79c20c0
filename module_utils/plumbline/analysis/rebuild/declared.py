"""What the inventory declares otherwise than a lock, and the variables that a run takes from the lock instead."""

from __future__ import annotations

import re
from typing import Any, Mapping

from ...state.engine_args import _PLACE_VARIABLES, is_nccl, is_place
from .host import Host
from .steps import Difference

_DECLARED_NCCL = re.compile(r"profile|delivery|variable\..*|environment\..*")


def declared(d: Difference, lock: Mapping[str, Any], host: Host) -> str:
    """The variable of the inventory that says otherwise than the lock; "" if it is the host that differs."""
    group, item = d["group"], d["item"]
    if group == "engine_args" and item.startswith("args."):
        return f"sglang_server_args.{item[5:]}"
    if group == "engine_args" and item.startswith("environment."):
        return f"sglang_server_environment.{item[12:]}"
    if group == "nccl" and _DECLARED_NCCL.fullmatch(item):
        kind, _dot, name = item.partition(".")
        return {
            "profile": "nccl_profile_name",
            "delivery": "nccl_profile_delivery",
            "variable": f"plumbline_nccl_profiles_lab, variable {name}",
            "environment": f"sglang_server_environment.{name}",
        }[kind]
    name = item.partition("/")[0]
    if group == "models" and name in (lock.get("models") or {}) and name in host.catalogue:
        declared = host.catalogue[name].get("files") or {}
        if declared and dict(declared) != lock["models"][name]["files"]:
            return f"plumbline_models_lab.{name}.files"
    return ""


def facts(lock: Mapping[str, Any], inventory: list[dict[str, Any]], host: Host) -> dict[str, Any]:
    """Variables that this run takes from the lock, as the inventory declares otherwise."""
    names = {row["variable"].partition(".")[0] for row in inventory}
    server, nccl, facts = lock.get("server") or {}, lock.get("nccl"), {}
    if "sglang_server_args" in names and "args" in server:
        keep = {k: v for k, v in host.args.items() if is_place(k, v) or "[redacted]" in str(server["args"].get(k))}
        facts["sglang_server_args"] = {**_known(server["args"]), **keep}
    if "sglang_server_environment" in names and "environment" in server:
        keep = {
            k: v
            for k, v in host.environment.items()
            if _PLACE_VARIABLES.fullmatch(k) or is_nccl(k) or "[redacted]" in str(server["environment"].get(k))
        }
        facts["sglang_server_environment"] = {**_known(server["environment"]), **keep}
    if nccl and any(n.startswith(("nccl_profile_", "plumbline_nccl_profiles_lab")) for n in names):
        facts["nccl_profile_name"] = nccl["profile"]
        facts["nccl_profile_delivery"] = nccl["delivery"]
        entry = {"description": f"as in the state {lock['name']}", "variables": nccl.get("variables") or {}}
        facts["plumbline_nccl_profiles_lab"] = {**host.profiles, nccl["profile"]: entry}
    if "plumbline_models_lab" in names:
        facts["plumbline_models_lab"] = {
            **host.catalogue,
            **{n: {**host.catalogue[n], "files": m["files"]} for n, m in lock["models"].items() if n in host.catalogue},
        }
    return facts


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if "[redacted]" not in str(v)}
