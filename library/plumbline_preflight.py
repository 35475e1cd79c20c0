#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Ansible entry of plumbline.preflight."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: plumbline_preflight
short_description: Look for what keeps a host from serving, or from serving fast, and say what mends it
description:
  - All checks in one call; all findings at once. Changes nothing.
  - A check that has nothing to say of this host (no GPU, a container) has no finding.
version_added: "0.1.0"
options:
  root:
    description: The root of Plumbline on the host (C(plumbline_root)).
    type: path
    required: true
  host_kind:
    description: Whether this is a machine of its own or a container; C(auto) finds out.
    type: str
    choices: [auto, bare, container]
    default: auto
  checks:
    description: Names of checks, or C(all). An empty list gives the facts alone.
    type: list
    elements: str
    default: [all]
  expected:
    description: What is expected. What is left out is not asked for.
    type: dict
    default: {}
    suboptions:
      gpus:
        description: Number of GPUs.
        type: int
      driver_version:
        description: Exact version of the driver. Left out, any, if module and user space are one.
        type: str
      held:
        description: Packages that must be held.
        type: list
        elements: str
      p2p:
        description: Whether GPUs are to reach one another over PCIe.
        type: bool
        default: true
      single_node:
        description: Whether servers use this host alone.
        type: bool
        default: true
      nccl_environment:
        description: NCCL variables that servers get.
        type: dict
      shm_mib:
        description: Least size of C(/dev/shm) in MiB.
        type: int
      memlock:
        description: Least limit of locked memory in bytes, or C(unlimited).
        type: str
      nofile:
        description: Least limit of open files.
        type: int
      ports:
        description: Ports that servers will listen on.
        type: list
        elements: int
      unit:
        description: Name of the unit that runs the server.
        type: str
      wedge_seconds:
        description: For how long to look whether a GPU is busy for nobody. 0 is not at all.
        type: float
        default: 2
attributes:
  check_mode:
    description: Changes nothing in either mode.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
  platform:
    description: Linux.
    platforms: posix
    support: full
author:
  - Plumbline contributors (@plumbline)
"""

EXAMPLES = r"""
- name: Look whether the host can serve
  plumbline_preflight:
    root: /opt/plumbline
    expected: {gpus: 8, driver_version: 580.105.08, shm_mib: 16384, memlock: unlimited, ports: [30000]}
  register: looked
"""

RETURN = r"""
facts:
  description: What the host is.
  returned: success
  type: dict
  sample:
    {kind: bare, container: "", distribution: debian12, kernel: 6.1.0-40-amd64, next_kernel: 6.1.0-41-amd64,
     command_line: [quiet, iommu=pt], gpus: 8, has_driver: true, driver: {version: 580.105.08, flavour: open}, 
     user_space: 580.105.08, secure_boot: false, smi_why: ""}
findings:
  description:
    - Each with C(check), C(level), C(what), C(found), C(expected) and C(remedy).
    - C(level) is C(ok), C(warning), C(error) or C(unknown).
  returned: success
  type: list
  elements: dict
errors:
  description: The findings of level C(error) as lines.
  returned: success
  type: list
  elements: str
remarks:
  description: The findings of levels C(warning) and C(unknown) as lines.
  returned: success
  type: list
  elements: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.plumbline.errors import PlumblineError
from ansible.module_utils.plumbline.preflight import run
from ansible.module_utils.plumbline.preflight.finding import lines
from ansible.module_utils.plumbline.state.cache import DigestCache
from ansible.module_utils.plumbline.state.context import Context


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "host_kind": {"type": "str", "choices": ["auto", "bare", "container"], "default": "auto"},
            "checks": {"type": "list", "elements": "str", "default": ["all"]},
            "expected": {
                "type": "dict",
                "default": {},
                "options": {
                    "gpus": {"type": "int"},
                    "driver_version": {"type": "str"},
                    "held": {"type": "list", "elements": "str"},
                    "p2p": {"type": "bool", "default": True},
                    "single_node": {"type": "bool", "default": True},
                    "nccl_environment": {"type": "dict"},
                    "shm_mib": {"type": "int"},
                    "memlock": {"type": "str"},
                    "nofile": {"type": "int"},
                    "ports": {"type": "list", "elements": "int"},
                    "unit": {"type": "str"},
                    "wedge_seconds": {"type": "float", "default": 2},
                },
            },
        },
        supports_check_mode=True,
    )
    p = module.params
    context = Context(root=Path(p["root"]), cache=DigestCache(None), host_kind=p["host_kind"])
    try:
        found = run(context, {**p["expected"], "root": p["root"]}, p["checks"])
    except PlumblineError as error:
        module.fail_json(msg=str(error), error=error.as_dict())
    module.exit_json(
        changed=False,
        errors=lines(found["findings"], ["error"]),
        remarks=lines(found["findings"], ["warning", "unknown"]),
        **found,
    )


if __name__ == "__main__":
    main()
