#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Ansible module: daemon-reload, but never under a running server."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: plumbline_systemd_reload
short_description: Have systemd read its units again, unless an SGLang server runs
description:
  - C(systemctl daemon-reload) under a running GPU container can take its devices away, so while a server runs
    nothing is done.
  - Does nothing where systemd has nothing new to read for the units that are named.
version_added: "0.1.0"
options:
  units:
    description: Units whose files may have changed.
    type: list
    elements: str
    default: []
  force:
    description: Reload even if systemd does not say that one of the units needs it.
    type: bool
    default: false
attributes:
  check_mode:
    description: Says whether it would reload.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
  platform:
    description: Linux with systemd.
    platforms: posix
    support: full
author:
  - Plumbline contributors (@plumbline)
"""

EXAMPLES = r"""
- name: Let systemd know the unit
  plumbline_systemd_reload:
    units: [sglang.service]
  register: reloaded
"""

RETURN = r"""
postponed:
  description: Whether a reload is needed and was not done, as servers run.
  returned: success
  type: bool
servers:
  description: Pids of the servers that run.
  returned: success
  type: list
  elements: int
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.plumbline.state.cache import DigestCache
from ansible.module_utils.plumbline.state.context import Context
from ansible.module_utils.plumbline.state.runtime import servers


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "units": {"type": "list", "elements": "str", "default": []},
            "force": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    p = module.params
    needed = p["force"]
    for unit in p["units"]:
        _rc, out, _err = module.run_command(["systemctl", "show", "-P", "NeedDaemonReload", "-P", "LoadState", unit])
        # A unit file that is new is "not-found" until systemd reads it.
        needed = needed or "yes" in out.split() or "not-found" in out.split()
    running = sorted(int(pid) for pid in servers(Context(root=Path("/"), cache=DigestCache(None))))
    if needed and not running and not module.check_mode:
        rc, _out, err = module.run_command(["systemctl", "daemon-reload"])
        if rc:
            module.fail_json(msg=f"systemctl daemon-reload: {err.strip()}", rc=rc)
    module.exit_json(changed=needed and not running, postponed=bool(needed and running), servers=running)


if __name__ == "__main__":
    main()
