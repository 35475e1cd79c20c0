#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Ansible entry of plumbline.server.ready."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: plumbline_ready
short_description: Wait until a server is ready, or until it is certain that it will not be
description:
  - Watches the server's process, its log and its port together. SGLang binds its port only after the load, so a refused
    connection means loading as long as the process lives.
  - Ready means that the log says so, that the server says so (C(/ready), before SGLang 0.5.20 C(/health_generate)),
    that it serves the expected model, and that it really generates the tokens that it is asked for.
  - Returns at once when the server dies, with the cause as its log shows it. On a hang or when the time is over it
    returns the stacks of the server's processes.
  - Fails if the server is not ready, unless I(fail=false).
version_added: "0.1.0"
options:
  root:
    description: The root of Plumbline on the host (C(plumbline_root)).
    type: path
    required: true
  boot:
    description: Id of the boot, as given to M(plumbline_server).
    type: str
    required: true
  base_url:
    description: Where the server will answer.
    type: str
    required: true
  model:
    description: The path that the server must name as its model. Left out, it is not checked.
    type: str
  draft:
    description: The path that the server must name as its draft model. Left out, it is not checked.
    type: str
  timeout_s:
    description: For how long to wait altogether, in seconds.
    type: float
    default: 1800
  hang_s:
    description:
      - The server is held to hang if for this many seconds its log does not grow, and its processes neither compute
        nor read.
    type: float
    default: 180
  silence_s:
    description:
      - The server is held to hang if for this many seconds its log does not grow although its processes compute, as
        they do when a collective waits for ever on a GPU. 0 switches this off.
    type: float
    default: 900
  proof_s:
    description: For how long the last step may take (the server's own readiness and the real generation), in seconds.
    type: float
    default: 120
  lease:
    description: The lease to renew while waiting, as M(plumbline_lease) returns it. If it is lost, the task fails.
    type: dict
  fail:
    description: Whether the task fails if the server does not become ready.
    type: bool
    default: true
attributes:
  check_mode:
    description: Waits for a boot that runs; where the boot was not started because of check mode, returns C(skipped).
    support: full
  diff_mode:
    description: Changes nothing, so has no difference to show.
    support: none
  platform:
    description: Linux.
    platforms: posix
    support: full
author:
  - Plumbline contributors (@plumbline)
"""

EXAMPLES = r"""
- name: Wait until it answers as the model that was asked for
  plumbline_ready:
    root: /opt/plumbline
    boot: 01KB7QA4D0E8T1XMV2R7S9WZ3C
    base_url: http://127.0.0.1:30000
    model: /opt/plumbline/models/kimi-k2.5-0a1b2c3d4e5f
    lease: "{{ held.lease }}"
  register: server
"""

RETURN = r"""
ready:
  description: Whether the server is ready.
  returned: always
  type: bool
phase:
  description:
    - How far it came; C(starting), C(distributed_init), C(weight_load), C(kv_pool), C(graph_capture), C(warm_up) or
      C(ready).
  returned: always
  type: str
phases:
  description: The phases that it went through, with the second after its start in which each was seen.
  returned: always
  type: list
  elements: dict
  sample: [{phase: weight_load, at_s: 14.2, draft: false}]
start_s:
  description: Seconds from the start of its process until it was proven ready, or null.
  returned: always
  type: float
port_s:
  description: Seconds from the start of its process until its port answered, or null.
  returned: always
  type: float
proof:
  description: What was proven, or null; the probe, the model and draft that it serves, its version, the tokens.
  returned: always
  type: dict
  sample:
    probe: /ready
    model_path: /opt/plumbline/models/m
    draft_path: null
    version: 0.5.23
    generated_tokens: 4
    generate_s: 0.061
failure:
  description:
    - Null, or C(class), C(detail), C(lines) of the log that show it, C(remedy), C(phase) and C(exit_code). For a hang
      also C(log_shows), a cause that the log names.
  returned: always
  type: dict
  sample:
    class: cuda_oom
    detail: a GPU ran out of memory
    lines: ["Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 512.00 MiB."]
    remedy: lower mem_fraction_static or the captured batch sizes
    phase: graph_capture
    exit_code: -9
stacks:
  description:
    - On a hang, C(tool) (C(py-spy), C(gdb) or C(none)) and the stacks of each process; also in the boot's
      C(stacks.txt).
  returned: always
  type: dict
log:
  description: The server's log.
  returned: always
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.plumbline.errors import PlumblineError
from ansible.module_utils.plumbline.server import boots, ready


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "boot": {"type": "str", "required": True},
            "base_url": {"type": "str", "required": True},
            "model": {"type": "str"},
            "draft": {"type": "str"},
            "timeout_s": {"type": "float", "default": 1800.0},
            "hang_s": {"type": "float", "default": 180.0},
            "silence_s": {"type": "float", "default": 900.0},
            "proof_s": {"type": "float", "default": 120.0},
            "lease": {"type": "dict"},
            "fail": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    p = module.params
    if module.check_mode and boots.status(p["root"], p["boot"])["state"] == "absent":
        module.exit_json(changed=False, skipped=True, msg="the boot was not started, because of check mode")
    try:
        found = ready.wait(p["root"], p["boot"], p["base_url"], p["model"], p["draft"], p["timeout_s"], p["hang_s"],
                           p["silence_s"], p["proof_s"], p["lease"])
    except PlumblineError as e:
        module.fail_json(msg=str(e), error=e.as_dict())
    failure = found["failure"]
    if failure and p["fail"]:
        lines = "".join(f"\n  | {line}" for line in failure["lines"])
        module.fail_json(msg=f"the server did not become ready: {failure['class']}: {failure['detail']}; "
                             f"remedy: {failure['remedy']}; log: {found['log']}{lines}", changed=False, **found)
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
