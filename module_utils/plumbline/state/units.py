"""systemd units and environment files of a server, read as text: nothing is asked of systemd, which may not be
there."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Dict, List, Mapping, Tuple

from .context import Context
from .redact import redact, redact_text, secret_name
from .values import unknown

_FOLDERS = ("/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system")
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

    They are known by what they run, not by their name. The digest is over the text without secrets.
    """
    out: Dict[str, Dict[str, Any]] = {}
    for folder in _FOLDERS:
        for name in context.names(folder):
            if not name.endswith(".service"):
                continue
            text = context.text(f"{folder}/{name}")
            if not _SERVES.search(text):
                continue
            files = [f"{folder}/{name}"] + [
                f"{d}/{name}.d/{n}" for d in _FOLDERS for n in context.names(f"{d}/{name}.d") if n.endswith(".conf")
            ]
            for path in files:
                found = context.read(path)
                if not isinstance(found, str):
                    out[path] = unknown(found.get("unknown", "it is gone"))
                    continue
                clean = redact_text(found)
                out[path] = {
                    "sha256": hashlib.sha256(clean.encode()).hexdigest(),
                    "directives": redact(parse_unit(clean)),
                }
    return out


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
