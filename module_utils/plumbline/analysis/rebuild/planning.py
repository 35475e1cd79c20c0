"""From the differences between a lock and an observed state to what must be run."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from ..lock import other_build
from .declared import declared, facts
from .host import Host, kind_of
from .steps import FULL, STEPS, TAKEN, Difference, make_step, needs_reboot, of_lock
from .ways import way


def plan(
    lock: dict[str, Any], found: Mapping[str, Any], state: Mapping[str, Any], host: Host, full: bool = False
) -> dict[str, Any]:
    """What to do about the differences ``found`` (as `lock.compare_with` gives them) between a lock and a state.

    ``{result, steps: [{step, role, tasks, why, items: [differences], data}], anew: digest of the build to set aside or
    null, facts: {variable: value} that this run takes from the lock in place of the inventory, inventory: [{variable,
    group, item, was, now}], cannot: [{group, item, was, now, impact, why}], reboot: [items], again: int, stop:
    unit|null}``. ``again`` counts what steps can mend without a reboot; ``stop`` is the production server's unit if it
    runs and steps change what it runs on.
    """
    by_step: dict[str, list[Difference]] = {}
    cannot: list[Difference] = []
    inventory: list[dict[str, Any]] = []
    inside = kind_of(state) != "bare"
    for d in [*found["differences"], *_other_build(lock, state, host)]:
        step, why = way(lock, d, host, inside)
        variable = declared(d, lock, host)
        if variable:
            inventory.append({"variable": variable, **{k: d[k] for k in ("group", "item", "was", "now")}})
        if step and step not in host.may_run:
            step, why = None, f"{step} is not among plumbline_rebuild_roles of this host"
        if step:
            by_step.setdefault(step, []).append(d)
        elif not variable:
            cannot.append({**{k: d[k] for k in ("group", "item", "was", "now", "impact")}, "why": why})
    why, stop = _server(by_step, state, host)
    if why:
        by_step.setdefault("sglang_server", [])
    taken = facts(lock, inventory, host)
    # Delivered files hold what the inventory declares: nothing is stopped before one of them turns out to change.
    for name in _for(taken, host):
        if name not in by_step:
            by_step[name], why = [], why or TAKEN
    steps = [
        make_step(lock, name, items, "" if items else why, state)
        for name, items in sorted(by_step.items(), key=lambda e: STEPS.index(e[0]))
    ]
    if full:
        missing = set(host.may_run) - {s["step"] for s in steps}
        more = [make_step(lock, name, [], FULL, state) for name in of_lock(lock, inside) if name in missing]
        steps = sorted([*steps, *more], key=lambda s: STEPS.index(s["step"]))
    mended = [i for items in by_step.values() for i in items]
    return {
        "result": found["result"],
        "steps": steps,
        "anew": _anew(state, by_step.get("sglang_build", []), host),
        "facts": taken,
        "inventory": inventory,
        "cannot": cannot,
        "reboot": [f"{d['group']}: {d['item']}" for d in mended if needs_reboot(d)],
        "again": sum(not needs_reboot(d) for d in mended),
        "stop": stop,
    }


def _for(taken: Mapping[str, Any], host: Host) -> list[str]:
    """The steps that give a host what is taken from the lock in place of the inventory."""
    delivered = any(n.startswith(("nccl_profile_", "plumbline_nccl_profiles")) for n in taken)
    served = bool(host.unit) and (delivered or any(n.startswith("sglang_server_") for n in taken))
    wanted = (("nccl_profile", delivered), ("sglang_server", served))
    return [name for name, needed in wanted if needed and name in host.may_run]


def _server(by_step: Mapping[str, list[Difference]], state: Mapping[str, Any], host: Host) -> tuple[str, Optional[str]]:
    """(why the production server must be seen to, "" if it need not; its unit if it has to be stopped first).

    A rebuild that was killed may have left it stopped, or running on files that are no longer there.
    """
    args = state["groups"].get("engine_args") or {}
    found = any(i.startswith("unit.") and i.endswith(f"/{host.unit}") for i in args.get("identity", {}))
    if not host.unit or "sglang_server" not in host.may_run or not (found or "sglang_server" in by_step):
        return "", None
    how = args.get("condition", {}).get(f"service.{host.unit}")
    below = {"sglang_build", "gpu_driver", "sglang_models", "nccl_profile", "sglang_server"} & set(by_step)
    read = any(d["group"] in ("nccl", "engine_args", "files") for d in by_step.get("files", []))
    if below or read:
        return "what it runs on was changed", host.unit if found and how != "stopped" else None
    if how == "stopped":
        return "the production server does not run", None
    if how == "runs with older files":
        return "files of the production server were changed after it was started", host.unit
    return "", None


def _anew(state: Mapping[str, Any], items: list[Difference], host: Host) -> Optional[str]:
    """The digest of the host's build if it is the locked one, at its own place, and must be made anew."""
    here = (state["groups"].get("build") or {}).get("condition", {})
    found = here.get("digest")
    # One that was set aside already is at another place: a killed rebuild left it there.
    its_place = isinstance(found, str) and str(here.get("path", "")).endswith(f"/{found}")
    anew = bool(items) and its_place and here.get("lock_digest") == host.build_digest
    return str(found) if anew and host.build_digest else None


def _other_build(lock: Mapping[str, Any], state: Mapping[str, Any], host: Host) -> list[Difference]:
    """That the current build was made from another lock, for a lock written by hand: it names versions, and two locks
    can name the same ones. A captured lock knows what the build held."""
    if lock.get("captured") or not host.build_digest:
        return []
    made_from = (state["groups"].get("build") or {}).get("condition", {}).get("lock_digest")
    return other_build(host.build_digest, made_from if isinstance(made_from, str) else None)
