#!/usr/bin/python
"""Documentation of the action plugin of the same name, which does the work on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: plumbline_compare
short_description: Compare two states and say what differs, ranked
version_added: "0.1.0"
description:
  - Compares two states. Each is C(state:NAME) (a lock, or the first 8 or more characters of a recorded state's
    digest), C(host:NAME) (a host of the inventory as it was observed in this play; a group stands for each of its
    hosts) or C(measurement:ID).
  - Prints a table and writes C(RESULTS_ROOT/compare/WAS--NOW.json).
  - Differences are no failure unless O(strict) is set.
author: Plumbline contributors (@plumbline)
attributes:
  check_mode:
    support: full
    description: Compares and prints, writes nothing.
  diff_mode:
    support: none
    description: The comparison is itself a difference.
  action:
    support: full
    description: Runs on the controller; hosts have been observed before.
options:
  was:
    description: The state that was.
    type: str
    required: true
  now:
    description: The state that is.
    type: str
    required: true
  results_root:
    description: Folder of the results tree on the controller.
    type: path
    required: true
  states_folders:
    description: Folders with locks of a lab's own, searched before the project's C(states).
    type: list
    elements: path
    default: []
  strict:
    description: Fail if anything differs or could not be read.
    type: bool
    default: false
  observed:
    description: Name of the variable of each host that holds what M(plumbline_state) returned.
    type: str
    default: plumbline_state_observed
"""

EXAMPLES = r"""
- name: Say what changed since the lock was captured
  plumbline_compare:
    was: state:known-good
    now: host:gpu-1
    results_root: results
"""

RETURN = r"""
comparisons:
  description: The comparisons, as they are written (schema C(plumbline.compare/1)).
  returned: success
  type: list
  elements: dict
  sample:
    - was: state:known-good
      now: host:gpu-1
      result: one setting differs
      differences:
        - {group: nccl, item: conf./etc/nccl.conf, was: {absent: true}, now: {variables: {NCCL_PROTO: Simple}},
          impact: performance, remedy: remove it}
table:
  description: The comparisons as text.
  returned: success
  type: str
  sample: "state:known-good -> host:gpu-1: one setting differs"
written:
  description: Paths of the files that were written.
  returned: success
  type: list
  elements: str
  sample: ["results/compare/state:known-good--host:gpu-1.json"]
"""
