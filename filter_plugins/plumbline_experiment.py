"""Filters of the role plumbline_experiment.

- ``plumbline_speculation``: {steps, draft_tokens} of effective server arguments, or null without speculation.
- ``plumbline_failure``: {class, detail, ...} of a failed task's result, and the path of the server's log on the host.
- ``plumbline_interrupted``: whether such a failure is none of the arm's, since the boot was broken off from outside.
- ``plumbline_only``: mappings reduced to some keys.
- ``plumbline_nccl``: what a boot's records say of NCCL, from the proofs in the results tree.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from plumbline.analysis.store import Results
from plumbline.nccl import proof
from plumbline.server.boots import INTERRUPTED
from plumbline.sglang import speculation


def numbers(args: Mapping[str, Any]) -> dict[str, Any] | None:
    return speculation.numbers(args)


def failure(result: Mapping[str, Any], task: str) -> dict[str, Any]:
    """The classified failure that a module returned, else what the task said: then the automation itself failed."""
    found = result.get("failure")
    if isinstance(found, Mapping) and found.get("class"):
        return {**found, "log": result.get("log")}
    said = next((item for item in result.get("results") or [] if item.get("failed")), result)  # of a loop: its first
    detail = str(said.get("msg") or said.get("module_stderr") or "no message")
    return {"class": "task_failed", "detail": f"{task}: {detail}"}


def interrupted(failed: Mapping[str, Any]) -> bool:
    return failed["class"] in INTERRUPTED


def only(entries: Iterable[Mapping[str, Any]], keys: Iterable[str]) -> list[dict[str, Any]]:
    return [{key: entry[key] for key in keys} for entry in entries]


def nccl(state: Mapping[str, Any], boot: Mapping[str, Any], results_root: str, delivery: str) -> dict[str, Any]:
    """A measurement's `nccl`: ranks as the arguments ask for them, and the newest proof that still speaks for it."""
    args = boot["args"]
    return proof.for_measurement(list(Results(results_root).proofs().values()), state=state["digest"],
                                 profile=boot["arm"]["nccl_profile"], delivery=delivery,
                                 ranks=proof.ranks_of(args),
                                 groups={name: group["digest"] for name, group in state["groups"].items()},
                                 server_args=args)


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"plumbline_speculation": numbers, "plumbline_failure": failure,
                "plumbline_interrupted": interrupted, "plumbline_only": only, "plumbline_nccl": nccl}
