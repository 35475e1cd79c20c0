#!/usr/bin/python
# Copyright: Plumbline contributors
# Apache License 2.0 (see LICENSE)
"""Time a data-checked all-reduce under several NCCL profiles."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: plumbline_nccl_sweep
short_description: Time a data-checked all-reduce under several NCCL profiles
description:
  - Runs one process a GPU, at each size in and out of a CUDA graph, and compares every element of the result.
  - Results are appended on the host as they come. A sweep that was interrupted goes on where it was.
  - A hang ends at I(limit_s) and becomes a recorded outcome that names the rank which did not arrive. Wrong data
    is recorded
    without times. If the GPUs are busy with processes that this sweep has not started, these are named and left
    alone.
options:
  root:
    description: Folder on the host for everything of Plumbline's (C(plumbline_root)).
    type: path
    required: true
  sweep:
    description: Name of the sweep. The same name goes on.
    type: str
    required: true
  python:
    description: A Python with torch, the build's own.
    type: path
    required: true
  profiles:
    description: The profiles, each with C(name) and C(variables).
    type: list
    elements: dict
    required: true
  modes:
    description: C(as-is), and C(no-p2p) for shared memory in place of peer to peer.
    type: list
    elements: str
    default: [as-is]
  sizes:
    description: Message sizes in bytes. Without, decode sizes (4 KiB to 1 MiB) and prefill sizes (to 64 MiB).
    type: list
    elements: int
  world:
    description: Number of ranks; 0 for as many as there are GPUs.
    type: int
    default: 0
  backend:
    description: C(auto) is NCCL where there are GPUs, else gloo, whose times say nothing about a GPU.
    type: str
    choices: [auto, nccl, gloo, socket]
    default: auto
  environment:
    description: The whole environment of the ranks, without the profile. PATH and HOME are added.
    type: dict
    default: {}
  limit_s:
    description: Time limit of one profile and mode, in seconds.
    type: float
    default: 120
  iterations:
    description: Rounds timed at each size; without, by size.
    type: int
  graph:
    description: Whether to measure in CUDA graphs, too.
    type: bool
    default: true
  algorithms:
    description: Whether to ask NCCL for the algorithm and protocol of each size, by a run of its own with debug
      output.
    type: bool
    default: true
  require_idle:
    description: Whether other processes on the GPUs are in the way.
    type: bool
    default: true
  retry:
    description: Whether what hung or crashed is tried again.
    type: bool
    default: false
  host:
    description: The host's name in the records.
    type: str
    default: ""
  state:
    description:
      - The host's state as M(plumbline_state) observed it. Results are bound to it, so that a host which has changed is measured again,
        and only results with a state are a data check (C(checked)).
    type: dict
  fault:
    description: For tests. Lets one rank misbehave; it is recorded with the results.
    type: dict
attributes:
  check_mode:
    support: full
    description: Says what would be run.
  diff_mode:
    support: none
    description: Has no diff.
author:
  - Plumbline contributors
"""

EXAMPLES = r"""
- name: See what a profile does, with P2P and without
  plumbline_nccl_sweep:
    root: /opt/plumbline
    sweep: 2026-11
    python: /opt/plumbline/builds/current/venv/bin/python
    profiles:
      - {name: none, variables: {}}
      - {name: ll, variables: {NCCL_PROTO: LL}}
    modes: [as-is, no-p2p]
"""

RETURN = r"""
records:
  description: All records of the sweep on this host (schema C(plumbline.nccl-sweep/1)).
  returned: success
  type: list
  elements: dict
added:
  description: Those that this task added.
  returned: success
  type: list
  elements: dict
outcomes:
  description: What became of each profile and mode that was run, with C(profile), C(mode), C(status), C(diagnosis).
  returned: success
  type: list
  elements: dict
checked:
  description:
    - Whether each profile and mode has passed the data check at I(sizes) in this state, with C(profile), C(mode), C(status), C(why).
    - C(status) is C(passed), C(failed) (wrong data, a hang, a crash) or C(open) (not checked here and now, or GPUs that others use).
  returned: success
  type: list
  elements: dict
open:
  description: What is still to be run, each with C(profile), C(mode), C(sizes).
  returned: success
  type: list
  elements: dict
"""

import os
from typing import Any, Dict, Mapping, Optional

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.plumbline.errors import PlumblineError
from ansible.module_utils.plumbline.nccl import collective, collective_worker, host_paths, sweep
from ansible.module_utils.plumbline.state.redact import redact


def state_digests(document: Optional[Mapping[str, Any]]) -> Optional[Dict[str, Any]]:
    """{digest, groups: {name: digest}} of a state document."""
    if not document:
        return None
    return {"digest": document["digest"], "groups": {n: g["digest"] for n, g in document["groups"].items()}}


# Named so that Ansible ships it: its text is what the ranks run.
SHIPPED = collective_worker.__name__


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "sweep": {"type": "str", "required": True},
            "python": {"type": "path", "required": True},
            "profiles": {"type": "list", "elements": "dict", "required": True},
            "modes": {"type": "list", "elements": "str", "default": ["as-is"]},
            "sizes": {"type": "list", "elements": "int"},
            "world": {"type": "int", "default": 0},
            "backend": {"type": "str", "choices": ["auto", *collective.BACKENDS], "default": "auto"},
            "environment": {"type": "dict", "default": {}},
            "limit_s": {"type": "float", "default": 120},
            "iterations": {"type": "int"},
            "graph": {"type": "bool", "default": True},
            "algorithms": {"type": "bool", "default": True},
            "require_idle": {"type": "bool", "default": True},
            "retry": {"type": "bool", "default": False},
            "host": {"type": "str", "default": ""},
            "state": {"type": "dict"},
            "fault": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    p = module.params
    shown = {"module_args": redact(p)}  # Ansible shows the arguments at -vvv, and an environment can hold a token
    gpus = sweep.gpus()
    backend = ("nccl" if gpus > 1 else "gloo") if p["backend"] == "auto" else p["backend"]
    sizes = p["sizes"] or [*collective.DECODE_SIZES, *(collective.PREFILL_SIZES if backend == "nccl" else ())]
    inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    work = sweep.Sweep(
        p["root"],
        p["sweep"],
        python=p["python"],
        world=p["world"] or (gpus if backend == "nccl" else 2),
        backend=backend,
        environment={**inherited, **{str(k): str(v) for k, v in p["environment"].items()}},
        limit_s=p["limit_s"],
        host=p["host"],
        graph=p["graph"],
        iterations=p["iterations"],
        algorithms=p["algorithms"],
        require_idle=p["require_idle"],
        fault=p["fault"],
        state=state_digests(p["state"]),
        after_hang=(lambda: host_paths.after_hang(p["root"])) if backend == "nccl" else None,
    )
    try:
        if module.check_mode:
            records = sweep.read(p["root"], p["sweep"])
            done = {"records": records, "added": [], "outcomes": []}
        else:
            done = work.run(p["profiles"], p["modes"], sizes, p["retry"])
        left = work.open_work(p["profiles"], p["modes"], sizes, p["retry"])
        checked = work.checked(p["profiles"], p["modes"], sizes)
    except PlumblineError as error:
        module.fail_json(invocation=shown, msg=str(error), **error.as_dict())
    module.exit_json(
        invocation=shown,
        changed=bool(left) if module.check_mode else bool(done["added"]),
        checked=checked,
        open=[{k: w[k] for k in ("profile", "mode", "sizes")} for w in left],
        **done,
    )


if __name__ == "__main__":
    main()
