"""systemd units and environment files of a server, read as text: nothing is asked of systemd, which may not be
there."""

from __future__ import annotations

import hashlib
import os
import re
import time
from typing import Any, Dict, List, Mapping, Tuple

from .context import Context
from .redact import redact, redact_text, secret_name
from .values import unknown

_FOLDERS = ("/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system")
# Drop-ins count wherever systemd takes them from: `systemctl set-property` and `edit --runtime` leave theirs elsewhere.
_DROP_INS = (*_FOLDERS, "/etc/systemd/system.control", "/run/systemd/system.control", "/usr/lib/systemd/system")
# Where the kernel shows the processes of a unit: cgroup version 2, 2 beside 1, and 1.
_CGROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd")
_SLACK_S = 2.0
_NOTES = re.compile(r"^X-Plumbline-.*\n?", re.M)
_SERVES = re.compile(r"sglang(\.launch_server|\s+serve)|plumbline-supervise|/builds/current/")


def parse_unit(text: str) -> Dict[str, List[str]]:
    """``Section.Directive`` -> values in order; an empty value clears what stood before, as systemd does."""
    out: Dict[str, List[str]] = {}
    section = ""
    joined = re.sub(r"\\\n", " ", text)
    for line in joined.splitlines():
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
            continue
        key, eq, value = line.partition("=")
        if eq:
            name = f"{section}.{key.strip()}"
            if value.strip():
                out.setdefault(name, []).append(" ".join(value.split()))
            else:
                out[name] = []
    return out


def parse_environment(text: str) -> Dict[str, str]:
    """An environment file's ``NAME=value`` lines (quotes taken off), as systemd reads them."""
    out: Dict[str, str] = {}
    for line in text.splitlines():
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        name, eq, value = line.partition("=")
        if eq and re.fullmatch(r"[A-Za-z_]\w*", name.strip()):
            value = value.strip()
            if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
                value = value[1:-1]
            out[name.strip()] = value
    return out


def split_environment(values: List[str]) -> Dict[str, str]:
    """``Environment=A=1 "B=2 3"`` lines as a mapping."""
    out: Dict[str, str] = {}
    for value in values:
        for quoted, single, plain in re.findall(r'"([^"]*)"|\'([^\']*)\'|(\S+)', value):
            name, eq, text = (quoted or single or plain).partition("=")
            if eq:
                out[name] = text
    return out


def server_units(context: Context) -> Dict[str, Dict[str, Any]]:
    """Units that start an SGLang server: path -> ``{sha256, directives}``; drop-ins are items of their own.

    They are known by what they run, not by their name. The digest is over the text without secrets, and without what
    we note in it (``X-Plumbline-Build``): the build is in group ``build``, where the same one has the same digest.
    """
    out: Dict[str, Dict[str, Any]] = {}
    for folder in _FOLDERS:
        for name in context.names(folder):
            if not name.endswith(".service"):
                continue
            text = context.text(f"{folder}/{name}")
            if not _SERVES.search(text):
                continue
            for path in [f"{folder}/{name}", *_drop_ins(context, name)]:
                found = context.read(path)
                if not isinstance(found, str):
                    out[path] = unknown(found.get("unknown", "it is gone"))
                    continue
                clean = _NOTES.sub("", redact_text(found))
                out[path] = {
                    "sha256": hashlib.sha256(clean.encode()).hexdigest(),
                    "directives": redact(parse_unit(clean)),
                }
    return out


def _drop_ins(context: Context, name: str) -> List[str]:
    """The files that change a unit beside its own, those for every service included."""
    folders = [f"{d}/{n}.d" for n in ("service", name) for d in _DROP_INS]
    return [f"{f}/{n}" for f in folders for n in context.names(f) if n.endswith(".conf")]


def services(context: Context, units: Mapping[str, Mapping[str, Any]]) -> Dict[str, str]:
    """How each unit's server is doing: ``runs``, ``stopped``, or ``runs with older files`` if one of its files was
    changed after it was started. Read from the kernel, for the running host only."""
    out: Dict[str, str] = {}
    roots = [r for r in _CGROUPS if context.path(f"{r}/system.slice").is_dir()]
    if not roots or str(context.sysroot) != "/":
        return out
    for path in units:
        name = path.rsplit("/", 1)[-1]
        if not name.endswith(".service"):
            continue
        pids = {p for r in roots for p in context.text(f"{r}/system.slice/{name}/cgroup.procs").split()}
        started = [s for s in map(_started_at, sorted(pids)) if s is not None]
        if not started:
            out[name] = "stopped"
            continue
        _variables, named = unit_environment(context, units)
        folders = [f"{d}/{name}.d" for d in _DROP_INS]
        changed = max(map(_changed_at, [path, *_drop_ins(context, name), *folders, *named]))
        out[name] = "runs with older files" if changed > min(started) + _SLACK_S else "runs"
    return out


def _started_at(pid: str) -> Any:
    """Unix seconds at which a process was started; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            ticks = int(f.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


def _changed_at(path: str) -> float:
    try:
        return os.stat(path).st_mtime  # noqa: PTH116
    except OSError:
        return 0.0


def unit_environment(
    context: Context, units: Mapping[str, Mapping[str, Any]]
) -> Tuple[Dict[str, Tuple[str, str]], List[str]]:
    """What the units give a server: name -> (value, source), later files winning; and the environment files that they
    name."""
    out: Dict[str, Tuple[str, str]] = {}
    files: List[str] = []
    for path, unit in units.items():
        directives = unit.get("directives", {})
        for name, value in split_environment(directives.get("Service.Environment", [])).items():
            out[name] = (value, path)
        for named in directives.get("Service.EnvironmentFile", []):
            files.append(named.lstrip("-"))
    for named in files:
        for name, value in parse_environment(context.text(named)).items():
            out[name] = ("[redacted]" if secret_name(name) else redact_text(value), named)
    return out, files
