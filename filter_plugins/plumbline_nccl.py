"""Filters of the NCCL playbook.

- ``plumbline_new_id``: a new id that sorts by time (ULID); what it is applied to plays no part.
- ``plumbline_group_digests``: digests of a state's groups by name.
- ``plumbline_nccl_ll128``: whether a profile's variables switch LL128 on, which over PCIe needs a data check.
- ``plumbline_nccl_check_words``: one entry of C(checked) of M(plumbline_nccl_sweep) as words.
- ``plumbline_entry``: the entry of a catalogue by name.
- ``plumbline_nccl_chosen``: profiles by name out of the catalogue, as M(plumbline_nccl_sweep) takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from plumbline.errors import unknown_name
from plumbline.ids import ulid
from plumbline.nccl.lists import forces_ll128


def new_id(_: Any) -> str:
    return ulid()


def entry(name: str, catalogue: Mapping[str, Any], kind: str, where: str) -> Any:
    """Raises PlumblineError with the nearest right name for one that is in no catalogue."""
    if name not in catalogue:
        raise unknown_name(kind, name, catalogue, where)
    return catalogue[name]


def chosen(names: Iterable[str], catalogue: Mapping[str, Any]) -> list[dict[str, Any]]:
    """[{name, variables}]. Raises PlumblineError for a name that is in no catalogue."""
    out = []
    for name in names:
        found = entry(name, catalogue, "NCCL profile", "profiles, plumbline_nccl_profiles")
        variables = found.get("variables") or {}
        out.append({"name": name, "variables": {str(k): str(v) for k, v in variables.items()}})
    return out


def group_digests(state: Mapping[str, Any]) -> dict[str, str]:
    return {name: group["digest"] for name, group in state["groups"].items()}


def ll128(variables: Mapping[str, Any], nccl_version: str) -> bool:
    return forces_ll128(str(variables.get("NCCL_PROTO", "")), nccl_version)


def check_words(checked: Mapping[str, Any]) -> str:
    return f"profile {checked['profile']}: {checked['why']}"


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "plumbline_new_id": new_id,
            "plumbline_entry": entry,
            "plumbline_nccl_chosen": chosen,
            "plumbline_nccl_check_words": check_words,
            "plumbline_nccl_ll128": ll128,
            "plumbline_group_digests": group_digests,
        }
