#!/usr/bin/python
"""Documentation of the action plugin of the same name, which does the work on the controller."""
from __future__ import annotations

DOCUMENTATION = r"""
module: plumbline_next
short_description: Say what is to be started next on a host
version_added: "0.1.0"
description:
  - Looks at the plan and at what has been measured, and returns the next boot, or the reason why there is none.
  - Amendments to the plan are appended to it with their reasons.
author: Plumbline contributors (@plumbline)
attributes:
  check_mode:
    support: full
    description: Returns the same and writes nothing.
  diff_mode:
    support: none
    description: Has no diff.
  action:
    support: full
    description: Runs on the controller; the target is not touched.
options:
  experiment:
    description: The experiment, as M(plumbline_experiment) returned it.
    type: dict
    required: true
  run:
    description: Id of the run.
    type: str
    required: true
  results_root:
    description: Folder of the results tree on the controller.
    type: path
    required: true
  host:
    description: Inventory name of the host.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Ask the plan
  plumbline_next:
    experiment: "{{ opened.experiment }}"
    run: "{{ opened.run }}"
    results_root: results
    host: "{{ inventory_hostname }}"
"""

RETURN = r"""
boot:
  description: The next boot, or null.
  returned: success
  type: dict
  sample: {arm: {name: baseline}, block: 0}
stop:
  description: Why there is no next boot.
  returned: success
  type: str
  sample: every comparison has a verdict
kind:
  description: V(verdict), V(budget), V(blocks) or V(failed).
  returned: success
  type: str
  sample: verdict
progress:
  description: Boots done and planned, and the seconds that are left.
  returned: success
  type: dict
  sample: {boots_done: 3, boots_planned: 10, left_s: 310}
"""
