"""Group ``os_packages``: every package of the operating system by exact version and whether it is held."""

# ruff: noqa: PTH116
from __future__ import annotations

import os
import re
from typing import Any, Dict

from ..digest import digest
from .cache import stat_key
from .context import Context
from .redact import redact_text
from .values import Group, absent, unknown

_STATUS = "/var/lib/dpkg/status"


def parse_status(text: str) -> Dict[str, Dict[str, Any]]:
    """dpkg's status file: ``{package[:arch of another architecture]: {version, held?}}`` for what is installed or
    half so."""
    out: Dict[str, Dict[str, Any]] = {}
    native = _native(text)
    for block in text.split("\n\n"):
        fields = dict(re.findall(r"(?m)^(Package|Status|Version|Architecture): (.*)$", block))
        status = fields.get("Status", "").split()
        if "Package" not in fields or len(status) != 3 or status[2] in ("not-installed", "config-files"):
            continue
        name = fields["Package"]
        if fields.get("Architecture") not in (None, "all", native):
            name = f"{name}:{fields['Architecture']}"
        value: Dict[str, Any] = {"version": fields.get("Version", "")}
        if status[0] == "hold":
            value["held"] = True
        if status[2] != "installed":
            value["state"] = status[2]
        out[name] = value
    return out


def _native(text: str) -> str:
    found = re.search(r"(?ms)^Package: dpkg$.*?^Architecture: (\S+)$", text)
    return found.group(1) if found else "amd64"


def observe(context: Context) -> Group:
    """The group ``os_packages``: items by package name, ``apt.PATH`` for the files that decide which versions apt
    takes."""
    group = Group("os_packages")
    release = dict(re.findall(r'(?m)^(ID|VERSION_ID|PRETTY_NAME)="?([^"\n]*)"?$', context.text("/etc/os-release")))
    group.identity["os-release"] = release or absent()
    status = context.path(_STATUS)
    if status.exists():
        try:
            key = stat_key(os.stat(status))
            scope = context.cache.scope("os_packages")
            if scope.get("key") != key:
                found = parse_status(status.read_text(errors="replace"))
                scope.clear()
                scope.update(key=key, packages=found)
                context.cache.touch("os_packages")
            group.identity.update({f"package.{n}": v for n, v in scope["packages"].items()})
        except OSError as e:
            group.identity["packages"] = unknown(f"{_STATUS}: {e.strerror}")
        _apt(context, group)
        return group
    tool = context.start("rpm", ["rpm", "-qa", "--qf", "%{NAME} %{EPOCHNUM}:%{VERSION}-%{RELEASE} %{ARCH}\\n"]).result()
    if tool.rc == 0:
        for line in sorted(tool.out.splitlines()):
            name, version, _arch = line.split(" ")
            group.identity[f"package.{name}"] = {"version": version}
    else:
        group.identity["packages"] = absent() if tool.rc is None else unknown(tool.why)
    return group


def _apt(context: Context, group: Group) -> None:
    """Pins and the unattended upgrades' configuration: what can change a package behind one's back."""
    for folder in ("/etc/apt/preferences.d", "/etc/apt/apt.conf.d", "/etc/apt/sources.list.d"):
        for name in context.names(folder):
            path = context.path(f"{folder}/{name}")
            if path.is_file() and not name.endswith((".dpkg-old", ".dpkg-dist", ".save", "~")):
                try:
                    text = path.read_text(errors="replace")
                    # Sources can carry credentials; the digest is made after they are out.
                    group.identity[f"apt.{folder}/{name}"] = digest(redact_text(text))[:16]
                except OSError as e:
                    group.identity[f"apt.{folder}/{name}"] = unknown(e.strerror)
