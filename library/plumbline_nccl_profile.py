#!/usr/bin/python
# Copyright: Plumbline contributors
# Apache License 2.0 (see LICENSE)
"""Validate an NCCL profile and deliver it."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: plumbline_nccl_profile
short_description: Validate an NCCL profile and deliver it to servers on this host
description:
  - Refuses a profile that NCCL would not take as it is written (unknown name, illegal or wrongly cased value,
    numbers that NCCL
    would read otherwise, LL128 over PCIe without a passing data check, variables that the engine sets itself).
  - Writes what the delivery needs below C(<root>/nccl/<profile>-<delivery>/) and removes every other delivery of
    Plumbline's.
  - Never writes C(/etc/nccl.conf) or C(~/.nccl.conf).
options:
  root:
    description: Folder on the host for everything of Plumbline's (C(plumbline_root)).
    type: path
    required: true
  name:
    description: Name of the profile.
    type: str
    required: true
  variables:
    description: The profile's variables. Empty for a profile that leaves NCCL as it is; nothing is delivered then.
    type: dict
    default: {}
  delivery:
    description:
      - C(env_file) gives the variables in the server's environment, and a file for C(EnvironmentFile=) of a
        systemd unit.
      - C(sitecustomize) lets every Python process of the server set those that are not set yet.
      - C(nccl_conf) points C(NCCL_CONF_FILE) to a file.
    type: str
    choices: [env_file, sitecustomize, nccl_conf]
    default: env_file
  nccl_version:
    description: NCCL of the build that will run, like C(2.28.9). Empty for a build without NCCL.
    type: str
    default: ""
  sglang_version:
    description: SGLang of the build that will run.
    type: str
    default: ""
  server_args:
    description: The server's arguments by SGLang's long option names, to refuse what contradicts a profile.
    type: dict
    default: {}
  interconnect:
    description: How the GPUs are joined.
    type: str
    choices: [pcie, nvlink]
    default: pcie
  data_check_passed:
    description: Whether a data-checked sweep of this very profile has passed on this host. Left out, it is looked for (I(state)).
    type: bool
    default: false
  state:
    description:
      - The host's state as M(plumbline_state) observed it. With it, the records of this host's sweeps tell whether every size was
        checked with exactly these variables in this state.
    type: dict
  environment:
    description: The whole environment that the server gets without the profile; its NCCL variables are part of what was checked.
    type: dict
    default: {}
  kept:
    description: What C(~/.nccl.conf) sets, to be carried over into the file that hides it (C(nccl_conf) only).
    type: dict
    default: {}
  python_path:
    description: A C(PYTHONPATH) that the server has anyway (C(sitecustomize) only).
    type: str
    default: ""
attributes:
  check_mode:
    support: full
    description: Says what would be written and removed.
  diff_mode:
    support: full
    description: Shows each file written or removed.
author:
  - Plumbline contributors
"""

EXAMPLES = r"""
- name: Deliver a profile by a conf file
  plumbline_nccl_profile:
    root: /opt/plumbline
    name: pcie-ll-ring
    variables: {NCCL_PROTO: LL, NCCL_ALGO: Ring}
    delivery: nccl_conf
    nccl_version: 2.28.9
"""

RETURN = r"""
environment:
  description: What the server's environment needs for the delivery.
  returned: success
  type: dict
directory:
  description: Folder of the delivery; null for a profile that sets nothing.
  returned: success
  type: str
variables:
  description: The profile's variables as text.
  returned: success
  type: dict
removed:
  description: Folders and files of former deliveries that were removed.
  returned: success
  type: list
  elements: str
written:
  description: Files that were written.
  returned: success
  type: list
  elements: str
remarks:
  description: What does not stop a start but must be known, each with C(name), C(asked), C(in_force), C(detail).
  returned: success
  type: list
  elements: dict
data_check:
  description: What this host's sweeps say of the profile, with C(status) (C(passed), C(failed), C(open)) and C(why).
  returned: success
  type: dict
errors:
  description: Why the profile is refused, each with C(what), C(where), C(found), C(allowed), C(remedy).
  returned: failure
  type: list
  elements: dict
"""

from typing import Any, Dict, Mapping

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.plumbline.errors import PlumblineError
from ansible.module_utils.plumbline.nccl import datacheck, delivery, profile, site_hook
from ansible.module_utils.plumbline.state.redact import redact, redact_diff


def data_check(p: Mapping[str, Any], asked: Mapping[str, Any]) -> Dict[str, str]:
    """Whether a data-checked collective has passed with these variables on this host in this state: {status, why}."""
    if p["data_check_passed"]:
        return {"status": "passed", "why": "data_check_passed was given"}
    if not p["state"]:
        return {"status": "open", "why": ""}
    groups = {name: group["digest"] for name, group in p["state"]["groups"].items()}
    whole = {**{str(k): str(v) for k, v in p["environment"].items()}, **profile.values(asked)}
    status, why = datacheck.outcome(datacheck.records_of(p["root"]), whole, groups)
    return {"status": status, "why": why}


# Named so that Ansible ships it: its text becomes the sitecustomize.
SHIPPED = site_hook.__name__


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "name": {"type": "str", "required": True},
            "variables": {"type": "dict", "default": {}},
            "delivery": {"type": "str", "choices": list(profile.DELIVERIES), "default": "env_file"},
            "nccl_version": {"type": "str", "default": ""},
            "sglang_version": {"type": "str", "default": ""},
            "server_args": {"type": "dict", "default": {}},
            "interconnect": {"type": "str", "choices": ["pcie", "nvlink"], "default": "pcie"},
            "data_check_passed": {"type": "bool", "default": False},
            "state": {"type": "dict"},
            "environment": {"type": "dict", "default": {}},
            "kept": {"type": "dict", "default": {}},
            "python_path": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    p = module.params
    shown = {"module_args": redact(p)}  # Ansible shows the arguments at -vvv, and an environment can hold a token
    asked = {"variables": p["variables"]}
    try:
        checked = data_check(p, asked)
        wrong = profile.validate(
            asked,
            p["nccl_version"],
            {**p, "data_check_passed": checked["status"] == "passed", "data_check": checked["why"]},
        )
        if wrong:
            said = "\n".join(str(e) for e in wrong)
            module.fail_json(invocation=shown, msg=f"NCCL profile {p['name']}: {said}", errors=[e.as_dict() for e in wrong])
        variables = profile.values(asked)
        kept = {str(k): str(v) for k, v in p["kept"].items()}
        planned = delivery.plan(p["root"], p["name"], variables, p["delivery"], kept, python_path=p["python_path"])
        done = delivery.apply(p["root"], planned, check=module.check_mode)
        remarks = profile.remarks(asked, p["sglang_version"]) if p["sglang_version"] else []
    except PlumblineError as error:
        module.fail_json(invocation=shown, msg=str(error), errors=[error.as_dict()])
    module.exit_json(
        invocation=shown,
        **{**done, "diff": redact_diff(done["diff"])},
        environment=planned["environment"],
        directory=planned["directory"],
        variables=variables,
        remarks=remarks,
        data_check=checked,
    )


if __name__ == "__main__":
    main()
