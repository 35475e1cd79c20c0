#!/usr/bin/python
# Copyright: Plumbline contributors
# Apache License 2.0 (see LICENSE)
"""Find everything on a host that sets NCCL's variables for a server."""
from __future__ import annotations

DOCUMENTATION = r"""
---
module: plumbline_nccl_sources
short_description: Find everything on this host that sets NCCL's variables for a server
description:
  - Reads the server's environment, the unit that runs it, every sitecustomize and usercustomize on the path of the
    build's Python,
    C(NCCL_CONF_FILE), C(~/.nccl.conf) and C(/etc/nccl.conf), in NCCL's order of precedence.
  - Names what wins over a delivered profile, what adds to it, and what is hidden or never runs. Nothing is changed.
options:
  nccl_version:
    description: NCCL of the build. Versions differ in where C(~) is and whether they know C(NCCL_CONF_FILE).
    type: str
    default: ""
  environment:
    description: The whole environment that the server gets without the profile.
    type: dict
    default: {}
  delivered:
    description: The delivered profile, with C(profile), C(delivery), C(directory), C(variables), C(environment).
    type: dict
  python:
    description: The build's Python. Without it no sitecustomize is looked for.
    type: path
  unit:
    description: A systemd unit that runs the server.
    type: str
    default: ""
attributes:
  check_mode:
    support: full
    description: Changes nothing in either mode.
  diff_mode:
    support: none
    description: Changes nothing.
author:
  - Plumbline contributors
"""

EXAMPLES = r"""
- name: See what else sets NCCL variables
  plumbline_nccl_sources:
    nccl_version: 2.28.9
    python: /opt/plumbline/builds/current/venv/bin/python
  register: sources
"""

RETURN = r"""
sources:
  description: What sets NCCL variables, in order of precedence, each with C(name), C(kind), C(path), C(variables),
    C(detail).
  returned: success
  type: list
  elements: dict
findings:
  description: >-
    What matters beside the profile, each with C(name), C(kind), C(path), C(variables), C(detail) and C(effect)
    (C(wins), C(adds), C(shadows), C(shadowed), C(hidden) or C(unreadable)).
  returned: success
  type: list
  elements: dict
user_conf:
  description: C(~/.nccl.conf) of the server's user, with C(path) and C(variables); null if there is none.
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.plumbline.errors import PlumblineError
from ansible.module_utils.plumbline.nccl import sources
from ansible.module_utils.plumbline.state.redact import redact, redact_shapes


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "nccl_version": {"type": "str", "default": ""},
            "environment": {"type": "dict", "default": {}},
            "delivered": {"type": "dict"},
            "python": {"type": "path"},
            "unit": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    p = module.params
    shown = {"module_args": redact(p)}  # Ansible shows the arguments at -vvv, and an environment can hold a token
    try:
        found = sources.collect(
            nccl_version=p["nccl_version"],
            environment={str(k): str(v) for k, v in p["environment"].items()},
            delivered=p["delivered"],
            python=p["python"] or "",
            unit=p["unit"],
        )
    except PlumblineError as error:
        module.fail_json(invocation=shown, msg=str(error), **error.as_dict())
    module.exit_json(invocation=shown, changed=False, **redact_shapes(found))


if __name__ == "__main__":
    main()
