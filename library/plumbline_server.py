#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Ansible entry of plumbline.server.control."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: plumbline_server
short_description: Start and stop one boot of a server
description:
  - Starts a server in a session of its own under Plumbline's supervisor and returns once its process exists; whether it
    becomes ready is for M(plumbline_ready) to say.
  - The supervisor stops the whole process tree, orphans and processes that left the group included, when it is told
    to, when the server's main process ends, when the lease ends, or when the controller's process on the same machine
    is gone.
  - Before a start it is checked that the port is free; else the task fails, naming the owner.
  - Stopping waits until no process of the boot is left.
version_added: "0.1.0"
options:
  root:
    description:
      - The root of Plumbline on the host (C(plumbline_root)). The role C(sglang_server) installs the supervisor there.
    type: path
    required: true
  state:
    description:
      - C(started) starts the boot. A boot is one start of one server; one that has ended is not started again.
      - C(stopped) stops it.
      - C(cleared) stops every boot of the root, and the processes that still measure one although nobody waits for
        them.
    type: str
    choices: [started, stopped, cleared]
    default: started
  boot:
    description: Id of the boot, a ULID. Needed but for I(state=cleared), where boots other than this one are stopped.
    type: str
  argv:
    description: The program, by its absolute path, and its arguments. Needed if I(state=started).
    type: list
    elements: str
  environment:
    description: Variables of the server.
    type: dict
    default: {}
  inherit:
    description:
      - Variables that the server gets as this module has them, where I(environment) does not set them.
      - It gets no others, so that a login shell's settings do not change what is measured.
    type: list
    elements: str
    default: [PATH, HOME, USER, LOGNAME, TMPDIR, TZ]
  cwd:
    description: Working folder of the server; left out, the boot's own folder.
    type: path
  ready_port:
    description: The port that the server will listen on, which must be free.
    type: int
  lease:
    description:
      - The lease that the boot works under, as M(plumbline_lease) returns it.
      - Left out, the server runs until it is stopped.
    type: dict
  grace_s:
    description: How long the processes have from SIGTERM to SIGKILL, in seconds.
    type: float
    default: 10
  timeout_s:
    description: How long a stop may take, in seconds, before what is left is killed without its supervisor.
    type: float
    default: 60
attributes:
  check_mode:
    description: Makes the checks of a start, and starts and stops nothing.
    support: full
  diff_mode:
    description: Shows whether the boot runs before and after.
    support: full
  platform:
    description: Linux.
    platforms: posix
    support: full
author:
  - Plumbline contributors (@plumbline)
"""

EXAMPLES = r"""
- name: Start a boot
  plumbline_server:
    root: /opt/plumbline
    boot: 01KB7QA4D0E8T1XMV2R7S9WZ3C
    argv:
      - /opt/plumbline/builds/current/venv/bin/python
      - -m
      - sglang.launch_server
      - --model-path
      - /opt/plumbline/models/kimi-k2.5-0a1b2c3d4e5f
    environment:
      NCCL_PROTO: LL
    ready_port: 30000
    lease: "{{ held.lease }}"
  register: started

- name: Stop it
  plumbline_server:
    root: /opt/plumbline
    state: stopped
    boot: 01KB7QA4D0E8T1XMV2R7S9WZ3C

- name: End whatever a former run left
  plumbline_server:
    root: /opt/plumbline
    state: cleared
"""

RETURN = r"""
boot_dir:
  description: The boot's folder (C(spec.json), C(pid.json), C(exit.json), C(server.log), C(supervisor.log)).
  returned: when I(state=started)
  type: str
pid:
  description: The server's main process; null in check mode.
  returned: when I(state=started)
  type: int
supervisor:
  description: The supervisor's process; null in check mode.
  returned: when I(state=started)
  type: int
log:
  description: The server's log.
  returned: when I(state=started)
  type: str
exit:
  description:
    - How the server ended (C(exit.json)), or null if it never ran.
    - Signal 9 after a stop is normal, SGLang ends its own tree so.
  returned: when I(state=stopped)
  type: dict
  sample:
    code: null
    signal: 9
    at: "2026-11-29T17:00:00.000000Z"
    reason: stopped
    detail: the supervisor was told to stop
    clean: true
    killed: []
    remaining: []
failure:
  description: Why a start was refused that is no fault of the server's, with C(class) and C(detail).
  returned: when the host is no longer held by I(lease)
  type: dict
  sample: {class: lease_lost, detail: "the lease on this host is no longer held by run 01KB7Q9Z6T4M5N8P2R3S1V0W7X; ..."}
killed:
  description: Processes that only SIGKILL ended.
  returned: when I(state=stopped)
  type: list
  elements: dict
  sample: [{pid: 4243, command: "sglang::scheduler_TP1"}]
stopped:
  description: Ids of the boots that were stopped.
  returned: when I(state=cleared)
  type: list
  elements: str
measuring:
  description: Processes that measured a boot and were ended.
  returned: when I(state=cleared)
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.plumbline.errors import PlumblineError
from ansible.module_utils.plumbline.server import boots, control, lease
from ansible.module_utils.plumbline.state.redact import redact


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["started", "stopped", "cleared"], "default": "started"},
            "boot": {"type": "str"},
            "argv": {"type": "list", "elements": "str"},
            "environment": {"type": "dict", "default": {}, "no_log": False},
            "inherit": {"type": "list", "elements": "str", "default": list(control.INHERIT)},
            "cwd": {"type": "path"},
            "ready_port": {"type": "int"},
            "lease": {"type": "dict"},
            "grace_s": {"type": "float", "default": 10.0},
            "timeout_s": {"type": "float", "default": 60.0},
        },
        required_if=[("state", "started", ["boot", "argv"]), ("state", "stopped", ["boot"])],
        supports_check_mode=True,
    )
    p = module.params
    shown = {"module_args": redact(p)}  # Ansible shows the arguments at -vvv, and an environment can hold a token
    before = boots.status(p["root"], p["boot"])["state"] if p["boot"] else None
    try:
        if p["state"] == "started":
            done = control.start(
                p["root"], p["boot"], p["argv"], control.environment_of(p["environment"], p["inherit"]), p["cwd"],
                p["ready_port"], p["lease"], p["grace_s"], dry=module.check_mode)
        elif p["state"] == "stopped":
            done = control.stop(p["root"], p["boot"], p["timeout_s"], dry=module.check_mode)
        else:
            keep = [p["boot"]] if p["boot"] else []
            done = control.stop_all(p["root"], p["timeout_s"], dry=module.check_mode, keep=keep)
    except lease.LeaseLostError as e:
        failed = {"class": e.failure_class, "detail": str(e)}
        module.fail_json(msg=str(e), error=e.as_dict(), failure=failed, invocation=shown)
    except PlumblineError as e:
        module.fail_json(msg=str(e), error=e.as_dict(), invocation=shown)
    if before and done["changed"]:
        after = "running" if p["state"] == "started" else "ended"
        done["diff"] = {"before": {p["boot"]: before}, "after": {p["boot"]: after}}
    module.exit_json(invocation=shown, **done)


if __name__ == "__main__":
    main()
