"""What playbooks/rebuild.yml decides on the controller: from a lock and an observed state to what must be run.

`read` checks a lock before any host is touched. `plan` sorts each difference into one of: a step (a role, or a task
file of ``plumbline_rebuild``, that mends it), the inventory (it declares otherwise than the lock), or what cannot be
changed from here, with the reason. `settle` says how it ended.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping, Optional

from ..build.lock import lock_digest
from ..digest import file_digest
from ..errors import PlumblineError
from ..models.catalogue import select
from ..state.compare import AS_RECORDED, compare
from ..state.engine_args import _PLACE_VARIABLES, is_nccl, is_place
from ..state.impact import classify, role_for
from ..state.values import absent, is_absent
from . import lock as locks
from .build import locks as build_locks

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
_FULL = "a full run runs every role that the lock says something of"
# A file by its absolute path; a stray one is moved aside.
_STRAY = re.compile(r"(?:conf|pythonpath|unit|limits|apt)\.(?P<path>[/~].*)")
_REBOOT = {
    "firmware_and_kernel": re.compile(r"kernel|kernel\.build|command_line|iommu|acs"),
    "driver": re.compile(r"module|module\..*|parameters"),
    "runtime": re.compile(r"module\..*"),
}
_DECLARED_NCCL = re.compile(r"profile|delivery|variable\..*|environment\..*")
_FIXED_RUNTIME = re.compile(r"cgroup|smt")
_BELOW = "the machine that this container runs on owns it: rebuild it there"
Difference = dict[str, Any]


@dataclass
class Host:
    """What the plan must know of a host beside its state: variables of its inventory, and what may be run on it."""

    name: str
    catalogue: Mapping[str, Any] = field(default_factory=dict)
    models: tuple[str, ...] = ()
    args: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    profiles: Mapping[str, Any] = field(default_factory=dict)
    build_digest: Optional[str] = None
    may_run: tuple[str, ...] = STEPS


# Before a host is touched.


def read(name: str, folders: Iterable[Path], search: Iterable[Path]) -> dict[str, Any]:
    """``{lock, file, build_digest}`` of a state: its schema, hashes, source trees and patches checked.

    ``build_digest``: digest of the lock's build lock, null if it has none. Raises PlumblineError.
    """
    path = locks.find(name, folders)
    lock = locks.read(path)
    wanted = None
    if lock.get("build"):
        resolved = build_locks.resolve(lock["build"], f"{path}, key build", [path.parent, *map(Path, search)])
        wanted = lock_digest(build_locks.without_sources(resolved))
    return {"lock": lock, "file": str(path.resolve()), "build_digest": wanted}


def digest_of_build(name: str, folders: Iterable[Path], search: Iterable[Path]) -> Optional[str]:
    """The digest of the build lock that the inventory names; None if it cannot be read (then it is not this one)."""
    try:
        return lock_digest(build_locks.without_sources(build_locks.load(name, folders, search)[0]))
    except PlumblineError:
        return None


def check_models(lock: Mapping[str, Any], catalogue: Mapping[str, Any], project: Path) -> None:
    """Refuse models that cannot be placed: unknown to the catalogue, of another revision, or whose files on the
    controller are not the locked ones. Raises PlumblineError naming the first."""
    for name, entry in (lock.get("models") or {}).items():
        where = f"state {lock['name']}, key models.{name}"
        model = select([name], catalogue, "plumbline_models, plumbline_models_lab")[0]
        if model.revision and entry.get("revision") and model.revision != entry["revision"]:
            raise PlumblineError(
                f"the catalogue has another revision of {name} than the lock",
                where,
                model.revision,
                entry["revision"],
                f"put the lock's revision into plumbline_models_lab.{name}.source",
            )
        if model.source != "controller":
            continue
        for path, sha256 in entry["files"].items():
            file = project / model.location / path
            got = file_digest(file) if file.is_file() else "no such file"
            if got != sha256:
                raise PlumblineError(
                    f"wrong hash: {path} of {name} on the controller is not the file that the lock means",
                    f"{where}.files, {file}",
                    got,
                    sha256,
                    "restore the file, or capture the state anew",
                )


# With the observed state.


def plan(
    lock: dict[str, Any], found: Mapping[str, Any], state: Mapping[str, Any], host: Host, full: bool = False
) -> dict[str, Any]:
    """What to do about the differences ``found`` (as `lock.compare_with` gives them) between a lock and a state.

    ``{result, steps: [{step, role, tasks, why, items: [differences], data}], anew: digest of the build to set aside or
    null, facts: {variable: value} that this run takes from the lock in place of the inventory, inventory: [{variable,
    group, item, was, now}], cannot: [{group, item, was, now, impact, why}], reboot: [items], again: int}``. ``again``
    counts what steps can mend without a reboot.
    """
    by_step: dict[str, list[Difference]] = {}
    cannot: list[Difference] = []
    inventory: list[dict[str, Any]] = []
    inside = _kind(state) != "bare"
    for d in [*found["differences"], *_other_build(lock, state, host)]:
        step, why = _way(lock, d, host, inside)
        variable = _declared(d, lock, host)
        if variable:
            inventory.append({"variable": variable, **{k: d[k] for k in ("group", "item", "was", "now")}})
        if step and step not in host.may_run:
            step, why = None, f"{step} is not among plumbline_rebuild_roles of this host"
        if step:
            by_step.setdefault(step, []).append(d)
        elif not variable:
            cannot.append({**{k: d[k] for k in ("group", "item", "was", "now", "impact")}, "why": why})
    steps = [_step(lock, name, items) for name, items in sorted(by_step.items(), key=lambda e: STEPS.index(e[0]))]
    if full:
        missing = set(host.may_run) - {s["step"] for s in steps}
        more = [_step(lock, name, [], _FULL) for name in of_lock(lock, inside) if name in missing]
        steps = sorted([*steps, *more], key=lambda s: STEPS.index(s["step"]))
    mended = [i for items in by_step.values() for i in items]
    return {
        "result": found["result"],
        "steps": steps,
        "anew": _anew(state, by_step.get("sglang_build", []), host),
        "facts": _facts(lock, inventory, host),
        "inventory": inventory,
        "cannot": cannot,
        "reboot": [f"{d['group']}: {d['item']}" for d in mended if needs_reboot(d)],
        "again": sum(not needs_reboot(d) for d in mended),
    }


def needs_reboot(d: Mapping[str, Any]) -> bool:
    """Whether what mends a difference takes effect with the next boot of the machine only."""
    pattern = _REBOOT.get(d["group"])
    return bool(pattern and pattern.fullmatch(d["item"]))


def _step(lock: Mapping[str, Any], name: str, items: list[Difference], why: str = "") -> dict[str, Any]:
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
    """``[{path, content: text|null}]``: null for a file that shall not be there. ``stdlib/NAME`` is below the standard
    library of the build's Python, ``~`` the home of the server's user."""
    out = []
    for d in items:
        stray = _STRAY.fullmatch(d["item"])
        entry: dict[str, Any] = {"path": stray["path"] if stray else d["item"], "content": None}
        if not is_absent(d["was"]) and d["group"] == "nccl":
            settings = lock["observed"]["nccl"][d["item"]]["variables"]
            entry["content"] = "".join(f"{k}={v}\n" for k, v in settings.items())
        elif not is_absent(d["was"]) and d["group"] == "runtime":
            entry["content"] = "".join(f"{line}\n" for line in lock["limits"][entry["path"]])
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


def _kind(state: Mapping[str, Any]) -> str:
    return str((state["groups"].get("container") or {}).get("identity", {}).get("kind", "bare"))


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


def _way(lock: dict[str, Any], d: Difference, host: Host, inside: bool) -> tuple[Optional[str], str]:
    """(the step that mends a difference, or None and why nothing can)."""
    group, item = d["group"], d["item"]
    if group == "hardware":
        return None, "other hardware"
    if group == "container":
        return None, "the kind and image of a container are chosen by the machine that it runs on"
    if inside and (group == "firmware_and_kernel" or (group == "driver" and item != "user_space")):
        return None, _BELOW
    stray = _STRAY.fullmatch(item)
    if stray and group in ("nccl", "engine_args", "runtime", "os_packages"):
        return _file_way(group, item, d)
    if group == "build":
        return _build_way(lock, d)
    if group == "files":
        return _files_way(lock, d)
    if group == "models":
        if item.partition("/")[0] in host.models:
            return "sglang_models", ""
        return None, "the model is none of this host's: sglang_server_target, sglang_server_drafts"
    if group == "engine_args":
        return ("sglang_server", "") if item.startswith("unit.") else (None, "the inventory declares it")
    if group == "nccl":
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


def _file_way(group: str, item: str, d: Difference) -> tuple[Optional[str], str]:
    if is_absent(d["was"]):
        return "files", ""
    if group == "nccl" and item.startswith("conf."):
        if d["impact"] == "noise":
            return None, "comments alone: NCCL reads the same"
        return "files", ""
    if item.startswith("unit."):
        return "sglang_server", ""
    if item.startswith("limits."):
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


def _files_way(lock: Mapping[str, Any], d: Difference) -> tuple[Optional[str], str]:
    item = d["item"]
    if item.startswith("stdlib/"):
        if d["was"] == AS_RECORDED:
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
    made_from = (state["groups"].get("build") or {}).get("condition", {}).get("lock_digest")
    if lock.get("captured") or not host.build_digest or made_from == host.build_digest:
        return []
    impact, remedy = classify("build", "lock_digest", host.build_digest, made_from)
    return [
        {
            "group": "build",
            "item": "lock_digest",
            "was": host.build_digest,
            "now": made_from if isinstance(made_from, str) else absent(),
            "impact": impact,
            "remedy": remedy,
        }
    ]


# What the inventory declares.


def _declared(d: Difference, lock: Mapping[str, Any], host: Host) -> str:
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


def _facts(lock: Mapping[str, Any], inventory: list[dict[str, Any]], host: Host) -> dict[str, Any]:
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


# At the end.


def settle(
    first: Mapping[str, Any], last: Mapping[str, Any], plans: list[Mapping[str, Any]], full: bool
) -> dict[str, Any]:
    """How a rebuild ended: ``{mended: [items], left: [{group, item, ..}], unexpected: [items]}``.

    ``first``, ``last``: the observed states; ``plans``: of all rounds, the last one of what is now. ``unexpected``:
    what a full run changed although the comparison had not found it: the comparison and the roles disagree.
    """
    planned = {(d["group"], d["item"]) for p in plans[:-1] for s in p["steps"] for d in s["items"]}
    now = {(d["group"], d["item"]) for s in plans[-1]["steps"] for d in s["items"]}
    left = [d for s in plans[-1]["steps"] for d in s["items"]]
    declared = {(r["group"], r["item"]) for p in plans for r in p["inventory"]}
    unexpected: list[str] = []
    if full:
        moved = {(d["group"], d["item"]) for d in compare(first, last)["differences"]}
        unexpected = [f"{g}: {i}" for g, i in sorted(moved - planned - declared)]
    return {
        "mended": [f"{g}: {i}" for g, i in sorted(planned - now)],
        "left": left,
        "unexpected": unexpected,
    }


def lines(plan: Mapping[str, Any], *, done: bool) -> list[str]:
    """A plan in words, a line each."""
    out = []
    for step in plan["steps"]:
        role = step["step"] if step["role"] != "plumbline_rebuild" else f"{step['step']} of plumbline_rebuild"
        items = ", ".join(f"{d['group']}: {d['item']}" for d in step["items"][:6])
        more = f" and {len(step['items']) - 6} more" if len(step["items"]) > 6 else ""
        out.append(f"{'still ' if done else ''}to run: {role} ({step['why']}){': ' + items + more if items else ''}")
    if plan["anew"]:
        out.append(f"the build {plan['anew'][:12]} is made anew; the altered one is kept beside it")
    for row in plan["inventory"]:
        out.append(
            f"the inventory declares otherwise: {row['variable']} is {row['now']}, the lock has {row['was']}; "
            "this run takes the lock's, put it into the inventory to keep it"
        )
    out += [f"cannot be changed from here: {c['group']}: {c['item']}: {c['why']}" for c in plan["cannot"]]
    if plan["reboot"]:
        out.append(f"takes effect with a reboot only (-e allow_reboot=true): {', '.join(plan['reboot'])}")
    return out


def came_back(verdict: Mapping[str, Any], host: str) -> list[dict[str, Any]]:
    """For each workload whose baseline was measured on a host: ``{workload, came_back: true|false|null, text}``.

    Null where nothing can be said: no reference yet, or too few boots.
    """
    words = {
        "stable": (True, "the number came back"),
        "improved": (True, "the number came back and is better"),
        "drifted": (False, "the number did not come back"),
        "expired": (None, "the baseline was not measured again"),
        "uncertain": (None, "it cannot be said whether the number came back"),
        "new": (None, "there is no reference yet: this is the first"),
    }
    out = []
    for row in verdict.get("baselines", []):
        if row["host"] != host:
            continue
        known, said = words.get(row["status"], (None, row["status"]))
        figures = [
            f"{row[key]:.1f} tok/s {when}"
            for key, when in (("now_tok_s", "now"), ("reference_tok_s", "is the reference"))
            if row.get(key) is not None
        ]
        reasons = "; ".join(row.get("reasons") or [])
        text = f"{row['workload']}: {said}: {', '.join(figures) or 'nothing was measured'}"
        out.append(
            {"workload": row["workload"], "came_back": known, "text": f"{text} ({reasons})" if reasons else text}
        )
    return out
