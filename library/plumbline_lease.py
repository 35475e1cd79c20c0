#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Ansible entry of plumbline.server.lease."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: plumbline_lease
short_description: Hold a host for one run of an experiment
description:
  - A host is held by one run at a time, told by C(ROOT/lease.json), so that two experiments never share it.
  - A lease is valid for I(ttl_s) and is renewed by everything that works under it (M(plumbline_server),
    M(plumbline_ready), M(plumbline_throughput)) and by taking it again. A server that was started under a lease is
    stopped by its supervisor when the lease runs out, is given back or goes to another run.
  - The same run takes the lease over at once, so that an interrupted run can go on; not while the process that drives
    that run lives on the very host, since two controllers would then drive one run.
  - Another run takes it at once if its holder's process ran on this very host and is gone, else when it has expired.
  - An action plugin of the same name adds which process on which machine is the controller.
version_added: "0.1.0"
options:
  root:
    description: The root of Plumbline on the host (C(plumbline_root)).
    type: path
    required: true
  state:
    description: C(held) takes or renews the lease, C(released) gives it back if I(run) holds it.
    type: str
    choices: [held, released]
    default: held
  run:
    description: Id of the run that works on the host. Needed, but to release with I(force).
    type: str
  experiment:
    description: Name of the experiment, for whoever is refused.
    type: str
  controller:
    description: Who drives the run, C(user@host). Left out, the action plugin fills it in.
    type: str
  controller_pid:
    description: Process id of the controller. Left out, the action plugin fills it in.
    type: int
  controller_start:
    description: Start time of that process in clock ticks since boot. Left out, the action plugin fills it in.
    type: int
  controller_machine:
    description: Boot and pid namespace that the process id belongs to. Left out, the action plugin fills it in.
    type: str
  ttl_s:
    description: For how long the lease is valid without being renewed, in seconds.
    type: float
    default: 120
  force:
    description: Release the lease whoever holds it.
    type: bool
    default: false
attributes:
  check_mode:
    description: Says whether the host could be taken, and takes nothing.
    support: full
  diff_mode:
    description: Shows the lease before and after.
    support: full
  platform:
    description: Linux.
    platforms: posix
    support: full
author:
  - Plumbline contributors (@plumbline)
"""

EXAMPLES = r"""
- name: Hold the host
  plumbline_lease:
    root: /opt/plumbline
    run: 01KB7Q9Z6T4M5N8P2R3S1V0W7X
    experiment: demo
  register: held

- name: Give it back
  plumbline_lease:
    root: /opt/plumbline
    state: released
    run: 01KB7Q9Z6T4M5N8P2R3S1V0W7X

- name: Free a host, whoever holds it
  plumbline_lease:
    root: /opt/plumbline
    state: released
    force: true
"""

RETURN = r"""
lease:
  description: The lease as it is now, or null if there is none. Times are Unix seconds of the host.
  returned: success
  type: dict
  sample:
    controller: ann@desk
    run: 01KB7Q9Z6T4M5N8P2R3S1V0W7X
    experiment: demo
    controller_pid: 4242
    controller_start: 123456
    controller_machine: 6e0d2f3c-0c1e-4b7c-9f0e-5d1f3b2a1c00/4026531836
    acquired_at: 1795971573.2
    renewed_at: 1795971573.2
    expires_at: 1795971693.2
    ttl_s: 120.0
took_over:
  description: Why the lease could be taken from its former holder, or null if there was none.
  returned: when I(state=held)
  type: str
  sample: same run
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.plumbline.errors import PlumblineError
from ansible.module_utils.plumbline.server import lease


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["held", "released"], "default": "held"},
            "run": {"type": "str"},
            "experiment": {"type": "str"},
            "controller": {"type": "str"},
            "controller_pid": {"type": "int"},
            "controller_start": {"type": "int"},
            "controller_machine": {"type": "str"},
            "ttl_s": {"type": "float", "default": lease.TTL_S},
            "force": {"type": "bool", "default": False},
        },
        required_if=[("state", "held", ["run", "controller"]), ("force", False, ["run"])],
        supports_check_mode=True,
    )
    p = module.params
    before = lease.read(p["root"])
    try:
        if p["state"] == "held":
            done = lease.acquire(p["root"], p, p["ttl_s"], dry=module.check_mode)
        else:
            done = lease.release(p["root"], p["run"] or "", p["force"], dry=module.check_mode)
    except PlumblineError as e:
        module.fail_json(msg=str(e), error=e.as_dict(), lease=before)
    if done["changed"]:
        done["diff"] = {"before": before or {}, "after": done["lease"] or {}}
    module.exit_json(**done)


if __name__ == "__main__":
    main()
