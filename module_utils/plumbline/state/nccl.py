"""Group ``nccl``: the profile asked for, how it is delivered, and everything else on this host that NCCL would read.

What would be in force follows from these items (the process's environment, then NCCL_CONF_FILE or ``~/.nccl.conf``,
then ``/etc/nccl.conf``; NCCL 2.30, misc/param.cc); it is the condition ``in_force``. That it *is* in force only a
proof can say.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .context import Context
from .redact import redact_text
from .units import server_units, unit_environment
from .values import Group, absent, unknown

# What the sitecustomize of a delivered profile reads (nccl/site_hook.py).
_HOOK_DATA = "profile.json"
# Name files that decide about rings, channels and distances.
PLANS = ("NCCL_GRAPH_FILE", "NCCL_TOPO_FILE")
# SGLang puts these into its environment itself when they are not in it, so no conf file can set them.
ENGINE_SETS = {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}


def parse_conf(text: str) -> Dict[str, str]:
    """A conf file as NCCL reads it: ``KEY=VALUE`` with no trimming, ``#`` only in the first column, other lines
    skipped."""
    out: Dict[str, str] = {}
    for line in text.splitlines():
        key, eq, value = line.partition("=")
        if eq and not line.startswith("#") and key not in out:
            out[key] = value
    return out


def _conf_item(context: Context, where: str) -> Any:
    try:
        text = redact_text(context.path(where).read_bytes().decode("utf-8", "replace"))
    except (FileNotFoundError, NotADirectoryError):
        return absent()
    except OSError as e:
        return unknown(f"{where}: {e.strerror}")
    return {"sha256": hashlib.sha256(text.encode()).hexdigest()[:16], "variables": parse_conf(text)}


def _startup(context: Context, folders: List[str]) -> Dict[str, Any]:
    """``sitecustomize``/``usercustomize`` in the folders of PYTHONPATH, which Python runs before anything else, and
    what ours reads."""
    out: Dict[str, Any] = {}
    for folder in folders:
        names = context.names(folder)
        for name in names:
            startup = name.split(".")[0] in ("sitecustomize", "usercustomize") and name != "__pycache__"
            if startup or (name == _HOOK_DATA and "sitecustomize.py" in names):
                path = str(context.path(f"{folder}/{name}"))
                try:
                    out[f"pythonpath.{folder}/{name}"] = {"sha256": context.cache.digest("startup", path, path)}
                except OSError as e:
                    out[f"pythonpath.{folder}/{name}"] = unknown(e.strerror)
    return out


def in_force(sources: Sequence[Tuple[str, Mapping[str, str]]]) -> Dict[str, Dict[str, Any]]:
    """``{name: {value, source, loses: [...]}}`` from sources in order of precedence."""
    out: Dict[str, Dict[str, Any]] = {}
    for source, variables in sources:
        for name, value in variables.items():
            if not name.startswith("NCCL_"):
                continue
            if name not in out:
                out[name] = {"value": value, "source": source}
            elif out[name]["value"] != value:
                out[name].setdefault("loses", []).append({"source": source, "value": value})
    return out


def observe(context: Context, environment: Mapping[str, str]) -> Group:
    """The group ``nccl`` for ``context.nccl`` (``{profile, delivery, variables}``) and the server's ``environment``."""
    group = Group("nccl")
    asked = context.nccl or {}
    variables = {str(k): str(v) for k, v in (asked.get("variables") or {}).items()}
    delivery = asked.get("delivery")
    group.identity["profile"] = asked.get("profile") or absent()
    group.identity["delivery"] = delivery or absent()
    for name, value in variables.items():
        group.identity[f"variable.{name}"] = value
    others = {k: str(v) for k, v in environment.items() if k.startswith("NCCL_") and variables.get(k) != str(v)}
    for name, value in others.items():
        group.identity[f"environment.{name}"] = redact_text(value)
    units = server_units(context)
    from_units, files = unit_environment(context, units)
    for named in files:
        text = context.read(named)
        clean = redact_text(text) if isinstance(text, str) else ""
        group.identity[f"file.{named}"] = hashlib.sha256(clean.encode()).hexdigest()[:16] if clean else text
    conf_file = environment.get("NCCL_CONF_FILE") or from_units.get("NCCL_CONF_FILE", ("", ""))[0]
    home = _conf_item(context, str((context.home or Path("~").expanduser()) / ".nccl.conf"))
    group.identity["conf.~/.nccl.conf"] = home
    group.identity["conf./etc/nccl.conf"] = _conf_item(context, "/etc/nccl.conf")
    user: Optional[Any] = home
    if conf_file:
        user = group.identity["conf.NCCL_CONF_FILE"] = _conf_item(context, conf_file)
    folders = [
        f
        for f in (environment.get("PYTHONPATH") or from_units.get("PYTHONPATH", ("", ""))[0]).split(os.pathsep)
        if f.startswith("/")
    ]
    group.identity.update(_startup(context, folders))
    process = [
        ("environment", {k: str(v) for k, v in environment.items()}),
        ("unit", {k: v for k, (v, _s) in from_units.items()}),
    ]
    profile = f"profile {asked.get('profile')}"
    if delivery in ("env_file", "sitecustomize"):
        process.append((f"{profile} by {delivery}", variables))
    sources = [*process, ("engine", ENGINE_SETS)]
    if delivery == "nccl_conf":
        sources.append((f"{profile} by nccl_conf", variables))
    sources.append(("NCCL_CONF_FILE" if conf_file else "~/.nccl.conf", _variables(user)))
    sources.append(("/etc/nccl.conf", _variables(group.identity["conf./etc/nccl.conf"])))
    force = group.condition["in_force"] = in_force(sources)
    for name in PLANS:
        if name in force:
            group.identity[f"content.{name}"] = _content(context, force[name]["value"])
    return group


def _content(context: Context, path: str) -> Any:
    """Digest of a file that NCCL takes its plan from: another text under the same name is another setting."""
    try:
        return hashlib.sha256(context.path(path).read_bytes()).hexdigest()[:16]
    except (FileNotFoundError, NotADirectoryError):
        return absent()
    except OSError as e:
        return unknown(f"{path}: {e.strerror}")


def _variables(item: Any) -> Dict[str, str]:
    return dict(item.get("variables", {})) if isinstance(item, dict) else {}
