"""Group ``engine_args``: what the server is asked for: arguments, environment, and the unit that starts it where
there is one."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from .context import Context
from .redact import redact, redact_text, secret_name
from .units import server_units
from .values import Group, absent

# Where a server listens has no part in what it computes, and can differ from boot to boot.
_PLACES = {
    "host",
    "port",
    "nccl-port",
    "dist-init-addr",
    "served-model-name",
    "gpu-id-step",
    "log-requests-target",
    "model-path",
    "speculative-draft-model-path",
}
# Variables of the environment that name places or the boot, or that only the shell made.
_PLACE_VARIABLES = {
    "PATH",
    "HOME",
    "PWD",
    "OLDPWD",
    "SHLVL",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "MAIL",
    "PLUMBLINE_BOOT",
    "_",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
    "XDG_SESSION_ID",
    "DBUS_SESSION_BUS_ADDRESS",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "NOTIFY_SOCKET",
}


def is_nccl(name: str) -> bool:
    """Variables of NCCL belong to group ``nccl``."""
    return name.startswith("NCCL_")


def arguments(args: Mapping[str, Any]) -> Dict[str, Any]:
    """Arguments as items ``args.NAME``, underscores as dashes, without secrets; false and null are as good as not
    given."""
    out: Dict[str, Any] = {}
    for key, value in args.items():
        name = key.lstrip("-").replace("_", "-")
        if value is None or value is False:
            continue
        out[name] = redact(value, name)
    return out


def observe(context: Context, environment: Mapping[str, str]) -> Group:
    """The group ``engine_args`` for ``context.args`` and the server's ``environment``."""
    group = Group("engine_args")
    found = arguments(context.args)
    for name, value in found.items():
        (group.condition if name in _PLACES else group.identity)[f"args.{name}"] = value
    for name, value in environment.items():
        if is_nccl(name):
            continue
        clean = "[redacted]" if secret_name(name) else redact_text(str(value))
        (group.condition if name in _PLACE_VARIABLES else group.identity)[f"environment.{name}"] = clean
    units = server_units(context)
    for path, value in units.items():
        group.identity[f"unit.{path}"] = value
    if not found and not units:
        group.identity["args"] = absent()
    return group
