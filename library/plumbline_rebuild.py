#!/usr/bin/python
"""Documentation of the action plugin of the same name, which does the work on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: plumbline_rebuild
short_description: Decide what a rebuild of a state does, and say how it ended
version_added: "0.1.0"
description:
  - The steps of C(playbooks/rebuild.yml) that need no host, all on the controller.
  - C(read) checks a lock (schema, hashes, source trees, patches, models) before any host is touched.
  - C(plan) compares the observed state with the lock, refuses a lock of other hardware, prints and records the
    comparison, and says which roles must be run for which differences, what the inventory declares otherwise, what
    cannot be changed from here and what takes a reboot.
  - C(end) says what was mended and fails if something that a role should have mended still differs.
  - C(proof) says of each baseline that was measured whether the number came back.
author: Plumbline contributors (@plumbline)
attributes:
  check_mode:
    support: full
    description: Decides and prints alike, writes nothing.
  diff_mode:
    support: none
    description: The comparison is printed in any case.
  action:
    support: full
    description: Runs on the controller; hosts have been observed before.
options:
  step:
    description: What to do.
    type: str
    required: true
    choices: [read, plan, end, proof]
  name:
    description: Name of the state.
    type: str
    default: ""
  states_folders:
    description: Folders with locks of a lab's own, searched before the project's C(states).
    type: list
    elements: path
    default: []
  results_root:
    description: Folder of the results tree on the controller.
    type: path
  read:
    description: What C(read) returned.
    type: dict
  state:
    description: The state as it is now, as M(plumbline_state) returned it.
    type: dict
  host:
    description:
      - The host's variables. C(catalogue) (models by name), C(models) (names of the host's), C(args), C(environment),
        C(profiles) (the lab's NCCL profiles), C(build) (name of its lock), C(build_lock_folders), C(build_search),
        C(roles) (what may be run), C(unit) (of the production server, empty where there is none).
    type: dict
    default: {}
  full:
    description: Run every role that the lock says something of.
    type: bool
    default: false
  plans:
    description: The plans of former rounds.
    type: list
    elements: dict
    default: []
  first:
    description: The state before anything was changed.
    type: dict
  verdict:
    description: The verdict of the baseline experiment.
    type: dict
"""

EXAMPLES = r"""
- name: Check the lock before any host is touched
  plumbline_rebuild:
    step: read
    name: known-good
    host: {catalogue: "{{ plumbline_models }}"}
  register: read
"""

RETURN = r"""
file:
  description: The lock's file.
  returned: with C(read)
  type: str
  sample: /srv/plumbline/states/known-good.yml
build_digest:
  description: Digest of the lock's build lock, null if it has none.
  returned: with C(read)
  type: str
facts:
  description: Variables that name the lock's build where the inventory names another.
  returned: with C(read)
  type: dict
plan:
  description: Steps, what the inventory declares otherwise, what cannot be changed from here, what takes a reboot.
  returned: with C(plan)
  type: dict
  sample:
    result: one setting differs
    steps:
      - step: sglang_models
        role: sglang_models
        tasks: main.yml
        why: files of a model are not the locked ones
        items: [{group: models, item: kimi-k2.5/config.json, impact: invalidates}]
        data: [kimi-k2.5]
    anew: null
    facts: {}
    inventory: []
    cannot: []
    reboot: []
    again: 1
comparison:
  description: The comparison (schema C(plumbline.compare/1)).
  returned: with C(plan)
  type: dict
lines:
  description: What was said.
  returned: with C(plan) and C(proof)
  type: list
  elements: str
mended:
  description: Items that differed and no longer do.
  returned: with C(end)
  type: list
  elements: str
  sample: ["models: kimi-k2.5/config.json"]
left:
  description: Differences that a role should have mended and that are still there.
  returned: with C(end)
  type: list
  elements: dict
unexpected:
  description: What a full run changed although the comparison had not found it.
  returned: with C(end)
  type: list
  elements: str
workloads:
  description: For each workload C(came_back) (null where it cannot be said) and C(text).
  returned: with C(proof)
  type: list
  elements: dict
"""
