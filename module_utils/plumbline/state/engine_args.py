"""Group ``engine_args``: what the server is asked for: arguments, environment, and the unit that starts it where
there is one."""

from __future__ import annotations

import re
from typing import Any, Dict, Mapping

from .context import Context
from .redact import redact, redact_text, secret_name
from .units import server_units, services
from .values import Group, absent

# Where a server listens has no part in what it computes, and can differ from boot to boot.
_PLACES = re.compile(r"host|port|nccl-port|dist-init-addr|log-requests-target")
# A folder's name is a place, too: group ``models`` says what is in it. A name on a hub is not.
_MODELS = re.compile(r"model-path|tokenizer-path|speculative-draft-model(-path)?")
# Variables of the environment that name places or the boot, or that only the shell made.
_PLACE_VARIABLES = re.compile(
    r"PATH|HOME|PWD|OLDPWD|SHLVL|USER|LOGNAME|SHELL|TERM|MAIL|PLUMBLINE_BOOT|_|TMPDIR|XDG_.*|DBUS_SESSION_BUS_ADDRESS"
    r"|INVOCATION_ID|JOURNAL_STREAM|NOTIFY_SOCKET|SSH_.*"
)
_ULID = re.compile(r"\b[0-7][0-9A-HJKMNP-TV-Z]{25}\b")


def without_ids(value: Any) -> Any:
    """The value with ids of boots and runs (a log folder's name, say) taken out: they differ at each look."""
    return _ULID.sub("<id>", value) if isinstance(value, str) else value


def is_place(name: str, value: Any) -> bool:
    """Whether an argument only says where something is."""
    return bool(_PLACES.fullmatch(name)) or (bool(_MODELS.fullmatch(name)) and str(value).startswith("/"))


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
        out[name] = without_ids(redact(value, name))
    return out


def observe(context: Context, environment: Mapping[str, str]) -> Group:
    """The group ``engine_args`` for ``context.args`` and the server's ``environment``."""
    group = Group("engine_args")
    found = arguments(context.args)
    for name, value in found.items():
        (group.condition if is_place(name, value) else group.identity)[f"args.{name}"] = value
    for name, value in environment.items():
        if is_nccl(name):
            continue
        clean = "[redacted]" if secret_name(name) else without_ids(redact_text(str(value)))
        (group.condition if _PLACE_VARIABLES.fullmatch(name) else group.identity)[f"environment.{name}"] = clean
    units = server_units(context)
    for path, value in units.items():
        group.identity[f"unit.{path}"] = value
    group.condition.update({f"service.{name}": how for name, how in services(context, units).items()})
    if not found and not units:
        group.identity["args"] = absent()
    return group
