"""Everything on a host that sets NCCL's variables, in NCCL's order of precedence, and what of it wins over a
delivered profile.

Process environment > NCCL_CONF_FILE or else ~/.nccl.conf > /etc/nccl.conf (NVIDIA/nccl ``src/misc/param.cc``). A
sitecustomize changes the process environment; only the first one on Python's path runs.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Dict, List, Optional

from . import delivery as deliveries
from . import known

_ASSIGNED = re.compile(r"""["'](NCCL_\w+)["']\s*(?:\]\s*=|,|:)\s*["']([^"']*)["']""")
_MENTIONED = re.compile(r"\bNCCL_\w+")
_SITE_PATHS = "import sys, json; print(json.dumps([p or '.' for p in sys.path]))"
_UNREADABLE = "cannot be read"


def _conf(path: Path, name: str, kind: str, version: str, root: Path) -> Optional[Dict[str, Any]]:
    real = root / str(path).lstrip("/") if root != Path("/") else path
    if not real.exists():
        return None
    try:
        values = known.parse_conf(
            real.read_text(errors="replace"), known.comments_supported(version) if version else True
        )
    except OSError as error:
        return {
            "name": name,
            "kind": kind,
            "path": str(path),
            "variables": {},
            "detail": f"{_UNREADABLE}: {error.strerror}",
        }
    return {"name": name, "kind": kind, "path": str(path), "variables": values, "detail": ""}


def home_of(version: str, environment: Mapping[str, str]) -> Optional[str]:
    """The folder of ~/.nccl.conf for this NCCL: $HOME of the server since 2.30, before that the user's entry in
    passwd.
    """
    if version and known.user_conf_from_home(version):
        return environment.get("HOME")
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return None


def site_hooks(python: str, environment: Mapping[str, str]) -> List[Dict[str, Any]]:
    """All sitecustomize and usercustomize files on the path of this Python in this environment, the one that runs
    first.

    ``[{module, path, runs: bool, ours: bool, variables: {assigned in plain sight}, mentions: [NCCL names]}]``. The
    Python is asked for its path with ``-S`` off, so that what .pth files add is seen, too.
    """
    env = {k: v for k, v in environment.items() if k != "PLUMBLINE_NCCL_RAN_DIR"}
    try:
        done = subprocess.run(
            [python, "-c", _SITE_PATHS], env=env, capture_output=True, text=True, timeout=60, check=False
        )
        paths = json.loads(done.stdout.strip().split("\n")[-1])
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return [
            {
                "module": "sitecustomize",
                "path": python,
                "runs": False,
                "ours": False,
                "variables": {},
                "mentions": [],
                "error": f"{python} does not start: {error}",
            }
        ]
    found: List[Dict[str, Any]] = []
    for module in ("sitecustomize", "usercustomize"):
        first = True
        for folder in dict.fromkeys(paths):
            for candidate in (Path(folder) / f"{module}.py", Path(folder) / module / "__init__.py"):
                if not candidate.is_file():
                    continue
                text = candidate.read_text(errors="replace")
                ours = (candidate.parent / deliveries.MARK).exists()
                found.append(
                    {
                        "module": module,
                        "path": str(candidate),
                        "runs": first,
                        "ours": ours,
                        "variables": {} if ours else dict(_ASSIGNED.findall(text)),
                        "mentions": [] if ours else sorted(set(_MENTIONED.findall(text))),
                    }
                )
                first = False
    # Ours runs the first one that it shadows.
    if found and found[0]["ours"]:
        for hook in found[1:]:
            if hook["module"] == "sitecustomize" and not hook["ours"]:
                hook["runs"] = True
                break
    return found


def unit_environment(unit: str) -> Optional[Dict[str, Any]]:
    """NCCL variables in the Environment= and EnvironmentFile= of a systemd unit; None without systemd or such a
    unit.
    """
    argv = ["systemctl", "show", "--property=Environment,EnvironmentFiles,LoadState", "--", unit]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    shown: Dict[str, List[str]] = {}
    for line in done.stdout.split("\n"):
        key, equals, value = line.partition("=")
        if equals:
            shown.setdefault(key, []).append(value)
    if shown.get("LoadState", ["not-found"])[0] != "loaded":
        return None
    values: Dict[str, str] = {}
    for text in shown.get("Environment", []):
        values.update(dict(word.split("=", 1) for word in shlex.split(text) if "=" in word))
    for text in shown.get("EnvironmentFiles", []):
        path = Path(text.split(" (")[0])
        if path.is_file():
            for line in path.read_text(errors="replace").split("\n"):
                if "=" in line and not line.lstrip().startswith(("#", ";")):
                    name, value = line.strip().split("=", 1)
                    values[name] = value.strip().strip("\"'")
    return {
        "name": f"environment of unit {unit}",
        "kind": "unit",
        "path": unit,
        "detail": "",
        "variables": {k: v for k, v in values.items() if k.startswith("NCCL_")},
    }


def collect(
    *,
    nccl_version: str,
    environment: Mapping[str, str],
    delivered: Optional[Mapping[str, Any]] = None,
    python: str = "",
    unit: str = "",
    home: Optional[str] = None,
    root: str = "/",
) -> Dict[str, Any]:
    """What sets NCCL variables for a server on this host, beside and including the delivered profile.

    ``environment``: the whole environment that the server gets without the profile; ``delivered``: {profile,
    delivery, directory, variables, environment} of ours or None; ``python``: the build's interpreter; ``unit``: a
    systemd unit that runs the server; ``root``: prefix of /etc/nccl.conf, for tests.
    Returns ``{sources: [in order of precedence: {name, kind, path, variables, detail}], findings: [{name, kind,
    path, variables, effect: wins|adds|shadows|shadowed|unreadable|hidden, detail}], user_conf: {path, variables} or
    None}``.
    """
    given = dict(delivered) if delivered and delivered.get("variables") else None
    how = given["delivery"] if given else None
    whole = {**environment, **(given["environment"] if given else {})}
    ours: List[Dict[str, Any]] = []
    if given:
        ours = [
            {
                "name": f"profile {given['profile']} by {how}",
                "kind": str(how),
                "path": given.get("directory"),
                "variables": dict(given["variables"]),
                "detail": "",
            }
        ]
    ambient = [
        {
            "name": "environment of the server",
            "kind": "environment",
            "path": None,
            "detail": "",
            "variables": {k: v for k, v in environment.items() if k.startswith("NCCL_")},
        }
    ]
    if unit:
        of_unit = unit_environment(unit)
        ambient += [of_unit] if of_unit else []
    hooks = site_hooks(python, whole) if python else []
    other_hooks = [
        {"name": h["path"], "kind": h["module"], "path": h["path"], "variables": h["variables"], "detail": ""}
        for h in hooks
        if h["runs"] and not h["ours"] and (h["variables"] or h["mentions"])
    ]
    files = _conf_files(nccl_version, whole, home, Path(root), given)
    if ours and files["own"] and Path(files["own"]).is_file():
        # With what was carried over from the file that it hides.
        carried = known.parse_conf(Path(files["own"]).read_text(errors="replace"))
        ours[0]["variables"] = {**carried, **ours[0]["variables"]}
    if how == "env_file":
        sources = [*ours, *ambient, *other_hooks, *files["read"]]
    elif how == "sitecustomize":
        sources = [*ambient, *ours, *other_hooks, *files["read"]]
    elif how == "nccl_conf":
        sources = [*ambient, *other_hooks, *ours, *files["read"]]
    else:
        sources = [*ambient, *other_hooks, *files["read"]]
    sources = [s for s in sources if s["variables"] or s["detail"]]
    findings = _findings(sources, ours, hooks, files, given)
    return {"sources": sources, "findings": findings, "user_conf": files["user"]}


def _conf_files(
    version: str, environment: Mapping[str, str], home: Optional[str], root: Path, given: Optional[Mapping[str, Any]]
) -> Dict[str, Any]:
    own = given["environment"].get("NCCL_CONF_FILE") if given else None
    named = environment.get("NCCL_CONF_FILE")
    folder = home if home is not None else home_of(version, environment)
    user = _conf(Path(folder) / ".nccl.conf", "~/.nccl.conf", "user_conf", version, Path("/")) if folder else None
    system = _conf(Path("/etc/nccl.conf"), "/etc/nccl.conf", "system_conf", version, root)
    read: List[Dict[str, Any]] = []
    hidden = None
    if named and (not version or known.conf_file_supported(version)):
        hidden = user
        if named != own:
            other = _conf(Path(named), "NCCL_CONF_FILE", "conf_file", version, Path("/"))
            read += [other] if other else []
    elif user:
        read.append(user)
    if system:
        read.append(system)
    return {"read": read, "user": user, "hidden": hidden, "own": own}


def _finding(source: Mapping[str, Any], effect: str, variables: Mapping[str, str], detail: str) -> Dict[str, Any]:
    return {
        "name": source["name"],
        "kind": source["kind"],
        "path": source["path"],
        "variables": dict(variables),
        "effect": effect,
        "detail": detail,
    }


def _findings(
    sources: List[Dict[str, Any]],
    ours: List[Dict[str, Any]],
    hooks: List[Dict[str, Any]],
    files: Mapping[str, Any],
    given: Optional[Mapping[str, Any]],
) -> List[Dict[str, Any]]:
    found: List[Dict[str, Any]] = []
    asked = given["variables"] if given else {}
    place = next((i for i, s in enumerate(sources) if ours and s is ours[0]), len(sources))
    for i, source in enumerate(sources):
        if ours and source is ours[0]:
            continue
        if source["detail"]:
            found.append(
                _finding(
                    source, "unreadable", {}, f"{source['name']}: {source['detail']}: it cannot be told what it sets"
                )
            )
        extra = {
            k: v
            for k, v in source["variables"].items()
            if k not in asked and k.startswith("NCCL_") and not k.startswith("NCCL_DEBUG")
        }
        extra.pop("NCCL_CONF_FILE", None)
        wins = (
            {k: v for k, v in source["variables"].items() if k in asked and v != asked[k]}
            if i < place and given
            else {}
        )
        if wins:
            listed = ", ".join(f"{k}={v} (the profile asks {asked[k]})" for k, v in sorted(wins.items()))
            found.append(_finding(source, "wins", wins, f"{source['name']} wins over the profile: {listed}"))
        if extra:
            listed = ", ".join(f"{k}={v}" for k, v in sorted(extra.items()))
            found.append(_finding(source, "adds", extra, f"{source['name']} sets what the profile does not: {listed}"))
    if files["hidden"] and files["hidden"]["variables"] and files["own"]:
        found.append(
            _finding(
                files["hidden"],
                "hidden",
                files["hidden"]["variables"],
                "NCCL_CONF_FILE hides ~/.nccl.conf; what the profile does not set was carried over",
            )
        )
    found += _hook_findings(hooks, given)
    return found


def _hook_findings(hooks: List[Dict[str, Any]], given: Optional[Mapping[str, Any]]) -> List[Dict[str, Any]]:
    found = []
    with_hook = bool(given) and given is not None and given["delivery"] == "sitecustomize"
    active = next((h for h in hooks if h["module"] == "sitecustomize"), None)
    for hook in hooks:
        source = {"name": hook["path"], "kind": hook["module"], "path": hook["path"]}
        if hook.get("error"):
            found.append(_finding(source, "unreadable", {}, hook["error"]))
        elif with_hook and hook is active and not hook["ours"]:
            found.append(
                _finding(
                    source,
                    "shadows",
                    hook["variables"],
                    f"{hook['path']} stands before the profile's sitecustomize on Python's path, which so never runs",
                )
            )
        elif not hook["runs"]:
            what = (
                "the profile's sitecustomize"
                if hook["ours"]
                else "this sitecustomize"
                if hook["module"] == "sitecustomize"
                else "this file"
            )
            found.append(
                _finding(
                    source,
                    "shadowed",
                    hook["variables"],
                    f"{what} never runs: another one stands before it on Python's path",
                )
            )
        elif not hook["ours"] and hook["mentions"] and not hook["variables"]:
            found.append(
                _finding(
                    source,
                    "adds",
                    {},
                    f"{hook['path']} runs in every process and speaks of {', '.join(hook['mentions'])}",
                )
            )
    return found
