"""Between two states: what differs that a boot can be given (units), and the good state with some of it (a mix)."""
from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterable, Optional

from ..build import patch as patches
from ..build.lock import lock_digest
from ..digest import digest
from ..errors import PlumblineError
from ..state.compare import compare
from . import lock as state_locks
from .build import locks as build_locks

BUILD, FILE, NCCL, ARG, ENVIRONMENT = "build", "file:", "nccl:", "arg:", "environment:"
_WHY = {"models": "another model is another service, not a slower host", "build": "one of the states has no build lock",
        "files": "it is in no patch of the state's lock"}
_MACHINE = "it belongs to the machine, not to a boot: rebuild.yml brings a host to a state"


@dataclass
class Side:
    """One of the two states: its lock, its build lock with sources resolved, and each edited file's patch."""

    name: str
    lock: dict[str, Any]
    build: Optional[dict[str, Any]] = None
    files: dict[str, str] = field(default_factory=dict)

    @property
    def nccl(self) -> Optional[dict[str, str]]:
        """The NCCL variables of the state, None if it says nothing of them."""
        section = self.lock.get("nccl")
        return None if section is None else dict(section.get("variables") or {})

    def server(self, key: str) -> Optional[dict[str, Any]]:
        """``args`` or ``environment`` of the state's server, None if it says nothing of them."""
        section = (self.lock.get("server") or {}).get(key)
        return None if section is None else dict(section)


def read(name: str, lock_folders: Iterable[Path], source_folders: Iterable[Path]) -> Side:
    """The state ``name`` with everything that its build lock refers to. Raises PlumblineError."""
    path = state_locks.find(name, lock_folders)
    lock = state_locks.read(path)
    side = Side(lock["name"], lock)
    if lock.get("build"):
        side.build = build_locks.resolve(lock["build"], str(path), [path.parent, *source_folders])
        for entry in side.build["patches"]:
            for file, text in split(Path(entry["source"]).read_text(), entry.get("strip", 1), entry["file"]).items():
                side.files[file] = side.files.get(file, "") + text
    return side


def split(text: str, strip: int, where: str) -> dict[str, str]:
    """The patch of each file in a unified diff, its paths written for ``strip`` 1."""
    out: dict[str, str] = {}
    pieces = re.split(r"(?m)^(?=--- [^\n]*\n\+\+\+ )", text)
    for piece in pieces:
        if not piece.startswith("--- "):
            continue
        (one,) = patches.parse(piece, strip, where)
        old, new, rest = piece.split("\n", 2)
        name = one.new or one.old or ""
        old = old if one.old is None else f"--- a/{one.old}"
        new = new if one.new is None else f"+++ b/{one.new}"
        # Lines between two files ("diff --git ...") belong to neither.
        hunks = re.match(r"(?:@@[^\n]*\n(?:[ +\-\\][^\n]*\n?|\n)*)+", rest)
        out[name] = out.get(name, "") + f"{old}\n{new}\n{hunks.group(0) if hunks else rest}"
    return out


def units(good: Side, bad: Side) -> tuple[list[dict], list[dict]]:
    """(what can be changed, what cannot): [{name, was, now}] with likely causes first, [{group, item, was, now, why}].
    """
    can: list[dict] = []
    if good.build and bad.build and _bare_digest(good.build) != _bare_digest(bad.build):
        can.append({"name": BUILD, "was": good.build["name"], "now": bad.build["name"]})
    for prefix, was, now in ((NCCL, good.nccl, bad.nccl), (FILE, good.files, bad.files),
                             (ARG, good.server("args"), bad.server("args")),
                             (ENVIRONMENT, good.server("environment"), bad.server("environment"))):
        if was is None or now is None or (prefix == FILE and not (good.build and bad.build)):
            continue
        for key in sorted(set(was) | set(now)):
            if was.get(key) != now.get(key):
                shown = [_short(side.get(key), prefix) for side in (was, now)]
                can.append({"name": prefix + key, "was": shown[0], "now": shown[1]})
    return can, _cannot(good, bad, [u["name"] for u in can])


def _short(value: Any, prefix: str) -> Any:
    if prefix == FILE:
        return "as the wheel has it" if value is None else f"edited ({digest(value)[:8]})"
    return value


def _bare_digest(build: dict) -> str:
    """What a build is without its name and its patches."""
    return lock_digest({**build_locks.without_sources(build), "name": "", "patches": []})


def _cannot(good: Side, bad: Side, names: list[str]) -> list[dict]:
    rows = compare(state_locks.expected(good.lock), state_locks.expected(bad.lock))["differences"]
    out = []
    for row in rows:
        group, item = row["group"], row["item"]
        covered = (
            (group == "build" and (BUILD in names or bool(good.build and bad.build)))
            or (group == "files" and any(n.startswith(FILE) and item.endswith(n[len(FILE):]) for n in names))
            or (group == "nccl" and item == "profile" and any(n.startswith(NCCL) for n in names))
            or (group == "nccl" and NCCL + item.removeprefix("variable.") in names)
            or (group == "engine_args" and (ARG + item.removeprefix("args.") in names
                                            or ENVIRONMENT + item.removeprefix("environment.") in names)))
        if not covered and row["impact"] != "noise":
            out.append({**{k: row[k] for k in ("group", "item", "was", "now", "impact")},
                        "why": _WHY.get(group, _MACHINE)})
    return out


def mix(good: Side, bad: Side, chosen: Iterable[str], all_units: Iterable[str]) -> dict:
    """The good state with the units ``chosen`` of the bad one.

    Returns {build: {lock, patch: text or None} or None, nccl: {variables} or None, args: {..} or None, environment:
    {..} or None}; None where no unit of that kind exists, so that the host's own is used.
    """
    take, every = set(chosen), list(all_units)

    def mixed(prefix: str, was: Optional[dict], now: Optional[dict]) -> Optional[dict]:
        if not any(u.startswith(prefix) for u in every):
            return None
        keys = [u[len(prefix):] for u in every if u.startswith(prefix)]
        changed = {k: ((now or {}) if prefix + k in take else (was or {})).get(k) for k in keys}
        same = {k: v for k, v in (was or {}).items() if k not in keys} if prefix in (NCCL, FILE) else {}
        return {**same, **changed}

    nccl = mixed(NCCL, good.nccl, bad.nccl)
    environment = mixed(ENVIRONMENT, good.server("environment"), bad.server("environment"))
    return {"build": _mixed_build(good, bad, BUILD in take, mixed(FILE, good.files, bad.files))
            if any(u == BUILD or u.startswith(FILE) for u in every) else None,
            "nccl": None if nccl is None else {k: v for k, v in nccl.items() if v is not None},
            "args": mixed(ARG, good.server("args"), bad.server("args")),
            "environment": None if environment is None else {k: v for k, v in environment.items() if v is not None}}


def _mixed_build(good: Side, bad: Side, other: bool, files: Optional[dict]) -> dict:
    side = bad if other else good
    if side.build is None:
        raise PlumblineError("a state without a build lock cannot be mixed", f"state {side.name}, key build")
    wanted = {k: v for k, v in (good.files if files is None else files).items() if v is not None}
    lock = {**build_locks.without_sources(side.build),
            "local": [{**{k: v for k, v in e.items() if k != "source"}, "path": e["source"]}
                      for e in side.build["local"]]}
    text = "".join(wanted[k] for k in sorted(wanted)) or None
    name = side.build["name"] if not wanted else f"mix-{digest([_bare_digest(side.build), text])[:12]}"
    return {"lock": {**lock, "name": name, "patches": []}, "patch": text}
