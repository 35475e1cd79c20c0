"""Locks of known states (``states/NAME.yml``, schema ``plumbline.lock/1``): made from a captured state, checked, and
compared.

A lock is runnable: what can be rebuilt stands in its own sections (``build`` is a whole build lock, so
``sglang_build`` reads it as it is), what can only be compared under ``observed``. `expected` turns it back into the
groups of a state; for a captured one these are the captured groups, to the digest.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any, Iterable, Optional

import yaml

from ..build.lock import public_version
from ..digest import digest
from ..errors import PlumblineError, unknown_name
from ..state.compare import compare
from ..state.impact import classify
from ..state.values import Group, absent, is_absent, is_unknown
from . import schema
from .build import locks as build_locks
from .patches import patch_of

SCHEMA = "plumbline.lock/1"
Items = dict[str, Any]


def find(name: str, folders: Iterable[Path]) -> Path:
    """The file of the state ``name``: a path that ends in .yml, or ``<folder>/<name>.yml`` in the first folder that
    has it."""
    searched = list(dict.fromkeys(map(Path, folders)))
    if name.endswith((".yml", ".yaml")) and Path(name).is_file():
        return Path(name)
    for folder in searched:
        if (folder / f"{name}.yml").is_file():
            return folder / f"{name}.yml"
    raise unknown_name(
        "state",
        name,
        {p.stem for f in searched if f.is_dir() for p in f.glob("*.yml")},
        ", ".join(f"{f}/" for f in searched),
    )


def read(path: Path) -> dict[str, Any]:
    """A lock as its file has it, validated: schema version, keys, hashes, and its build lock.

    Raises PlumblineError before anything is done with it.
    """
    try:
        document = yaml.safe_load(path.read_text())
    except yaml.YAMLError as e:
        raise PlumblineError("the lock is not YAML", str(path), str(e).replace("\n", " "), None, "mend it") from None
    found = document.get("schema") if isinstance(document, dict) else type(document).__name__
    if found == build_locks.SCHEMA:  # a build lock alone is a state of which nothing but the build is known
        return {"schema": SCHEMA, "name": document["name"], "build": build_locks.read(path)}
    if found != SCHEMA:
        other = str(found).startswith("plumbline.lock/")
        raise PlumblineError(
            "a lock of another schema version" if other else "not a lock of a state",
            f"{path}, key schema",
            found,
            SCHEMA,
            "capture the state anew with this version: playbooks/capture.yml -e state=NAME",
        )
    schema.validate("lock", document, str(path))
    if document.get("build"):
        build_locks.read(path)
    return document


# From a state to a lock.


class _Taker:
    """Takes items out of a captured state; what is left is only observed."""

    def __init__(self, state: dict) -> None:
        self.left: dict[str, Items] = {n: dict(g["identity"]) for n, g in state["groups"].items()}

    def prefixed(self, group: str, prefix: str) -> Items:
        """All known items whose name begins so, without the prefix."""
        items = self.left.get(group, {})
        names = [i for i, v in items.items() if i.startswith(prefix) and not is_unknown(v) and not is_absent(v)]
        return {name[len(prefix) :]: items.pop(name) for name in names}

    def one(self, group: str, item: str) -> Any:
        """One item; None if it is absent, unknown or not there (then it stays among the observed)."""
        value = self.left.get(group, {}).get(item)
        if value is None or is_unknown(value) or is_absent(value):
            return None
        return self.left[group].pop(item)


def make(
    state: dict,
    *,
    name: str,
    description: str = "",
    build_lock: Optional[dict] = None,
    evidence: Optional[dict] = None,
) -> tuple[dict, dict[str, str], list[str]]:
    """The lock of a captured state, the files that belong beside it ({name: text}), and what cannot be rebuilt, in
    words.

    ``build_lock``: the build lock that the host's build was made from, None if it is not known; ``evidence``: as
    `plumbline_state` returned it, for patches of edited files.
    """
    take = _Taker(state)
    remarks: list[str] = []
    files: dict[str, str] = {}
    lock: dict[str, Any] = {"schema": SCHEMA, "name": name}
    if description:
        lock["description"] = description
    captured = {"host": state["host"], "observed_at": state["observed_at"], "digest": state["digest"]}
    lock["captured"] = captured
    made_patches = ((state["groups"].get("build") or {}).get("condition", {}).get("patches")) or []
    deviating = take.prefixed("files", "")
    text, unmade = patch_of(deviating, evidence or {}, made_patches if isinstance(made_patches, list) else [])
    remarks += unmade
    lock["build"] = build_lock
    if build_lock is None:
        there_is_one = not is_absent(take.left.get("build", {}).get("build"))
        remarks.append("build: " + ("it was made from no build lock that is known here, so it cannot be made anew"
                                    if there_is_one else "this host has none, so the lock says nothing of one"))
    elif text:
        files[f"{name}.patch"] = text
        patch = {"file": f"{name}.patch", "sha256": _sha256(text)}
        lock["build"] = {**build_lock, "name": _build_name(name), "patches": [*build_lock.get("patches", []), patch]}
    lock["installed"] = {"distributions": take.prefixed("build", "distribution."), "files": deviating}
    lock["models"] = _models(take, state)
    lock["server"] = {
        "args": take.prefixed("engine_args", "args."),
        "environment": take.prefixed("engine_args", "environment."),
    }
    profile = take.left.get("nccl", {})
    if isinstance(profile.get("profile"), str) and isinstance(profile.get("delivery"), str):
        lock["nccl"] = {
            "profile": take.one("nccl", "profile"),
            "delivery": take.one("nccl", "delivery"),
            "variables": take.prefixed("nccl", "variable."),
        }
    driver = take.left.get("driver", {})
    if isinstance(driver.get("module"), str) and isinstance(driver.get("module.flavour"), str):
        lock["driver"] = {"version": take.one("driver", "module"), "flavour": take.one("driver", "module.flavour")}
        if isinstance(driver.get("user_space"), str):
            lock["driver"]["user_space"] = take.one("driver", "user_space")
    lock["packages"] = take.prefixed("os_packages", "package.")
    lock["kernel"] = {
        k: v
        for k, v in (
            ("release", take.one("firmware_and_kernel", "kernel")),
            ("command_line", take.one("firmware_and_kernel", "command_line")),
        )
        if v is not None
    }
    lock["kernel"]["sysctls"] = take.prefixed("firmware_and_kernel", "sysctl.")
    lock["limits"] = take.prefixed("runtime", "limits.")
    lock["observed"] = take.left
    if remarks:
        captured["not_rebuilt"] = remarks
    return lock, files, remarks


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _build_name(name: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._") or "captured"


def _models(take: _Taker, state: dict) -> dict[str, Any]:
    conditions = (state["groups"].get("models") or {}).get("condition", {})
    out: dict[str, Any] = {}
    for item, value in list(take.left.get("models", {}).items()):
        name, slash, path = item.partition("/")
        if slash and isinstance(value, str):
            out.setdefault(name, {"files": {}})["files"][path] = take.left["models"].pop(item)
            if f"{name}: revision" in conditions:
                out[name]["revision"] = conditions[f"{name}: revision"]
    return out


# From a lock to the state that it means.


def expected(lock: dict, now: Optional[dict] = None) -> dict[str, Any]:
    """What the lock means as a state: ``{host, observed_at, digest, groups, unverified}``; ``digest`` is null unless
    it was captured.

    ``now`` fills in what a lock written by hand cannot know (the RECORD of a distribution of the right version).
    """
    identity: dict[str, Items] = {n: dict(items) for n, items in (lock.get("observed") or {}).items()}

    def put(group: str, prefix: str, items: Optional[Items]) -> None:
        if items:
            identity.setdefault(group, {}).update({prefix + k: v for k, v in items.items()})

    installed = lock.get("installed") or {}
    put("build", "distribution.", installed.get("distributions") or _locked_distributions(lock.get("build"), now))
    if lock.get("build") and "installed" not in lock:
        identity.setdefault("files", {}).update(_patched(lock["build"], now))
    put("files", "", installed.get("files"))
    if installed:
        identity.setdefault("files", {})
    for name, model in (lock.get("models") or {}).items():
        put("models", f"{name}/", model["files"])
    put("engine_args", "args.", (lock.get("server") or {}).get("args"))
    put("engine_args", "environment.", (lock.get("server") or {}).get("environment"))
    nccl = lock.get("nccl")
    if nccl:
        put("nccl", "", {"profile": nccl["profile"], "delivery": nccl["delivery"]})
        put("nccl", "variable.", nccl.get("variables"))
    driver = lock.get("driver")
    if driver:
        put("driver", "", {"module": driver["version"], "module.flavour": driver["flavour"]})
        put("driver", "", {"user_space": driver["user_space"]} if "user_space" in driver else {})
    put("os_packages", "package.", lock.get("packages"))
    kernel = lock.get("kernel") or {}
    put(
        "firmware_and_kernel",
        "",
        {new: kernel[old] for old, new in (("release", "kernel"), ("command_line", "command_line")) if old in kernel},
    )
    put("firmware_and_kernel", "sysctl.", kernel.get("sysctls"))
    put("runtime", "limits.", lock.get("limits"))
    groups = {n: Group(n, items).document() for n, items in identity.items()}
    captured = lock.get("captured") or {}
    return {
        "host": captured.get("host"),
        "observed_at": captured.get("observed_at"),
        "groups": groups,
        "unverified": [],
        "digest": digest({n: g["digest"] for n, g in groups.items()}) if captured else None,
    }


def _patched(build: dict, now: Optional[dict]) -> Items:
    """Files of the state that are as the patches of a build lock leave them: edited, and meant so."""
    groups = (now or {}).get("groups", {})
    made = (groups.get("build") or {}).get("condition", {}).get("patches")
    wanted = {entry["sha256"] for entry in build.get("patches", [])}
    after = {
        f"/site-packages/{path}": sha256
        for patch in (made if isinstance(made, list) else [])
        if patch.get("sha256") in wanted
        for path, sha256 in (patch.get("files") or {}).items()
    }
    here = (groups.get("files") or {}).get("identity", {})
    return {
        item: value
        for item, value in here.items()
        if isinstance(value, dict)
        and any(item.endswith(path) and value.get("sha256") == sha256 for path, sha256 in after.items())
    }


def _locked_distributions(build: Optional[dict], now: Optional[dict]) -> Items:
    """Distributions of a build lock as items; one that is there in the right version counts as the right one."""
    if not build:
        return {}
    here = ((now or {}).get("groups", {}).get("build") or {}).get("identity", {})
    out: Items = {}
    for name, entry in build.get("distributions", {}).items():
        found = here.get(f"distribution.{name}")
        if entry.get("when") and found is None:
            continue  # only with the other build of torch
        same = isinstance(found, dict) and public_version(str(found.get("version"))) == public_version(entry["version"])
        out[name] = found if same else {"version": entry["version"]}
    for entry in build.get("git", []):
        found = here.get(f"distribution.{entry['name']}")
        same = isinstance(found, dict) and found.get("commit") == entry["commit"]
        out[entry["name"]] = found if same else {"commit": entry["commit"]}
    return out


def compare_with(lock: dict, now: dict, except_for: Iterable[str] = ()) -> dict[str, Any]:
    """The comparison (as `state.compare`) of what the lock means with a state; first the lock, then the state.

    A lock that was captured is complete: what it does not name was not there. Of one written by hand only what it
    names counts, and what a build of its own must not hold: files that deviate, other files beside a model's.
    """
    was = expected(lock, now)
    groups = {n: g for n, g in now["groups"].items() if n in was["groups"]}
    if not lock.get("captured"):
        groups = {
            n: {**g, "identity": _named(n, was["groups"][n]["identity"], g["identity"], lock)}
            for n, g in groups.items()
        }
    return compare(was, {**now, "groups": groups}, except_for)


def other_build(was: Optional[str], now: Optional[str]) -> list[dict[str, Any]]:
    """The difference (as a row of `state.compare`) of two builds by the digests of the locks they are made from."""
    if was == now:
        return []
    impact, remedy = classify("build", "lock_digest", was, now)
    shown = [absent() if d is None else d for d in (was, now)]
    return [{"group": "build", "item": "lock_digest", "was": shown[0], "now": shown[1], "impact": impact,
             "remedy": remedy}]


def _named(group: str, was: Items, now: Items, lock: dict) -> Items:
    if group == "files":
        return {i: v for i, v in now.items() if not i.startswith(("stdlib/", "system/")) or i in was}
    models = tuple(f"{m}/" for m in lock.get("models") or {})
    return {i: v for i, v in now.items() if i in was or (group == "models" and i.startswith(models))}


def check_hardware(lock: dict, now: dict) -> None:
    """Refuse a lock of other hardware: other processors or other GPUs. Raises PlumblineError naming each."""
    found = [
        d
        for d in compare_with(lock, now)["differences"]
        if (d["group"] == "hardware" and d["impact"] == "performance") or re.fullmatch(r"gpu\.\d+\.name", d["item"])
    ]
    if found:
        raise PlumblineError(
            "the lock is for other hardware",
            f"state {lock['name']}",
            "; ".join(f"{d['item']}: {d['now']}" for d in found),
            "; ".join(f"{d['item']}: {d['was']}" for d in found),
            "use a lock that was captured on such a host, or capture one here",
        )
