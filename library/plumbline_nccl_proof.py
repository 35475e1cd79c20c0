#!/usr/bin/python
# Copyright: Plumbline contributors
# Apache License 2.0 (see LICENSE)
"""Prove from NCCL's debug files that a profile is in force on every rank."""
from __future__ import annotations

DOCUMENTATION = r"""
---
module: plumbline_nccl_proof
short_description: Prove from NCCL's own words whether a profile is in force, rank by rank
description:
  - Reads the debug files that the processes of one proving start have written (C(NCCL_DEBUG=INFO), one file a
    process), the engine's log
    and the environment of the processes while they live.
  - Says for each rank and variable whether it was taken (and from where), overridden, ignored, missing, or not
    read because it was
    not needed; with channels, transports, and the algorithm and protocol for each message size.
  - Changes nothing.
options:
  folder:
    description: Folder of the files C(nccl.<pid>.log).
    type: path
    required: true
  profile:
    description: Name of the profile.
    type: str
    required: true
  variables:
    description: The profile's variables.
    type: dict
    default: {}
  delivery:
    description: How the profile was delivered.
    type: str
    choices: [env_file, sitecustomize, nccl_conf]
  server_args:
    description: The server's arguments; the number of ranks is taken from them.
    type: dict
    default: {}
  ranks:
    description: How many ranks there must be, where the arguments do not say.
    type: int
  server_log:
    description: The engine's log.
    type: path
  sglang_version:
    description: SGLang of the build.
    type: str
    default: ""
  nccl_version:
    description: NCCL of the build. What the log says wins.
    type: str
    default: ""
  state:
    description: Digest of the state that was observed before the start. Without it the proof speaks for no
      measurement.
    type: str
  groups:
    description: Digests of the state's groups, by name.
    type: dict
    default: {}
  sources:
    description: What sets NCCL variables on this host, in order of precedence (M(plumbline_nccl_sources)).
    type: list
    elements: dict
    default: []
  ran_dir:
    description: Where the profile's sitecustomize leaves its proof that it ran.
    type: path
  host:
    description: The host's name in the records.
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
- name: See whether the profile is in force
  plumbline_nccl_proof:
    folder: /opt/plumbline/nccl/proofs/01KB7QA4D0E8T1XMV2R7S9WZ3C
    profile: pcie-ll-ring
    variables: {NCCL_PROTO: LL}
    delivery: env_file
    server_args: {tp-size: 8}
"""

RETURN = r"""
proof:
  description: The proof (schema C(plumbline.proof/1)).
  returned: success
  type: dict
logs:
  description: The debug files' texts by name, each cut in its middle if it is long.
  returned: success
  type: dict
"""

from datetime import datetime, timezone
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.plumbline.errors import PlumblineError
from ansible.module_utils.plumbline.nccl import proof
from ansible.module_utils.plumbline.state.redact import redact, redact_shapes


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "profile": {"type": "str", "required": True},
            "variables": {"type": "dict", "default": {}},
            "delivery": {"type": "str", "choices": ["env_file", "sitecustomize", "nccl_conf"]},
            "server_args": {"type": "dict", "default": {}},
            "ranks": {"type": "int"},
            "server_log": {"type": "path"},
            "sglang_version": {"type": "str", "default": ""},
            "nccl_version": {"type": "str", "default": ""},
            "state": {"type": "str"},
            "groups": {"type": "dict", "default": {}},
            "sources": {"type": "list", "elements": "dict", "default": []},
            "ran_dir": {"type": "path"},
            "host": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    p = module.params
    shown = {"module_args": redact(p)}  # Ansible shows the arguments at -vvv, and an environment can hold a token
    try:
        found = proof.collect(Path(p["folder"]), p["server_log"], p["ran_dir"])
        asked = {str(k): str(v) for k, v in p["variables"].items()}
        document = proof.prove(
            profile=p["profile"],
            asked=asked,
            delivery=p["delivery"],
            logs=list(found["logs"].values()),
            expected_ranks=p["ranks"] or proof.ranks_of(p["server_args"]),
            state=p["state"],
            groups=p["groups"] or None,
            host=p["host"],
            at=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            nccl_version=p["nccl_version"],
            sglang_version=p["sglang_version"],
            server_log=found["server_log"],
            server_args=p["server_args"],
            sources=p["sources"],
            environ=proof.read_environ(found["pids"], asked),
            hook_runs=found["hook_runs"],
        )
    except PlumblineError as error:
        module.fail_json(invocation=shown, msg=str(error), **error.as_dict())
    logs = {name: proof.shorten(text) for name, text in found["logs"].items()}
    module.exit_json(invocation=shown, changed=False, **redact_shapes({"proof": document, "logs": logs}))


if __name__ == "__main__":
    main()
