"""Filters of the host roles.

- ``plumbline_driver_packages``: names, version specs and pins of NVIDIA's driver packages for an exact version.
- ``plumbline_driver_preferences``: the apt preferences that go with them.
- ``plumbline_unit_command``: an argv list as systemd's ``ExecStart=`` takes it.
- ``plumbline_unit_environment``: a mapping as the text of an ``EnvironmentFile=``.
- ``plumbline_secret_names``: which keys of a mapping name secrets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError
from plumbline.errors import PlumblineError
from plumbline.host import driver
from plumbline.state.redact import secret_name

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")


def driver_packages(version: str, distribution: str, kind: str, extent: str = "compute") -> dict[str, Any]:
    try:
        return driver.packages(version, distribution, kind, extent)
    except PlumblineError as error:
        raise AnsibleFilterError(str(error)) from error


def driver_preferences(found: Mapping[str, Any], version: str, release: str) -> str:
    return driver.preferences(version, dict(found), release)


def unit_command(argv: Sequence[Any]) -> str:
    """systemd.service(5), "Command lines": no shell; ``%`` and ``$`` are doubled, and what is not plain is quoted."""
    words = []
    for word in map(str, argv):
        text = word.replace("%", "%%").replace("$", "$$")
        if not _PLAIN.fullmatch(word):
            text = '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
        words.append(text)
    return " ".join(words)


def unit_environment(variables: Mapping[str, Any]) -> str:
    """systemd.exec(5), EnvironmentFile: double quotes, in which backslash, quote, dollar and backtick are escaped."""
    lines = []
    for name, value in sorted(variables.items()):
        text = str(value)
        if not re.fullmatch(r"[A-Za-z_]\w*", name) or "\n" in text:
            raise AnsibleFilterError(f"{name!r}: not a variable that an environment file can hold")
        escaped = re.sub(r'(["\\$`])', r"\\\1", text)
        lines.append(f'{name}="{escaped}"' if not _PLAIN.fullmatch(text) else f"{name}={text}")
    return "".join(f"{line}\n" for line in lines)


def secret_names(mapping: Mapping[str, Any]) -> list[str]:
    return sorted(name for name, value in mapping.items() if secret_name(str(name)) and value not in (None, False, ""))


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "plumbline_driver_packages": driver_packages,
            "plumbline_driver_preferences": driver_preferences,
            "plumbline_unit_command": unit_command,
            "plumbline_unit_environment": unit_environment,
            "plumbline_secret_names": secret_names,
        }
