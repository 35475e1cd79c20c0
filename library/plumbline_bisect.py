#!/usr/bin/python
"""Documentation of the action plugin of the same name, which does the work on the controller."""
from __future__ import annotations

DOCUMENTATION = r"""
module: plumbline_bisect
short_description: Say which test a bisect between two states makes next, or what it has found
version_added: "0.1.0"
description:
  - Takes the locks of two states, finds the differences that a boot can be given (the build, edited files, NCCL variables,
    server arguments and environment), and searches for the smallest set that carries the change of speed, by delta
    debugging.
  - Each test is an experiment with a run of its own. The module returns what a run of it needs; asked again after that
    run, it reads the verdict and goes on.
  - Entries are appended to C(RESULTS_ROOT/bisect-GOOD-BAD/bisect.jsonl); the end is written to C(bisect.json) beside it.
    A search that was interrupted goes on where it was.
author: Plumbline contributors (@plumbline)
attributes:
  check_mode:
    support: full
    description: Says what can be changed and what cannot, writes nothing.
  diff_mode:
    support: none
    description: Has no diff.
  action:
    support: full
    description: Runs on the controller; the target is not touched.
options:
  good:
    description: The state that is fast, by the name or path of its lock.
    type: str
    required: true
  bad:
    description: The state that is not.
    type: str
    required: true
  host:
    description: The host that is measured.
    type: str
    required: true
  results_root:
    description: Folder of the results tree on the controller.
    type: path
    required: true
  workload:
    description: The workload that is measured.
    type: str
    required: true
  variant:
    description: The variant that is measured.
    type: str
    default: baseline
  catalogues:
    description: "C(variants), C(nccl_profiles), C(workloads) and C(models)."
    type: dict
    required: true
  states_folders:
    description: Folders with locks of a lab's own, searched before the project's.
    type: list
    elements: path
    default: []
  build:
    description: The host's build lock, used where the states have no build.
    type: str
    default: ""
  build_folders:
    description: The host's folders of build locks.
    type: list
    elements: path
    default: []
  search:
    description: Folders in which a lock's relative paths are looked up.
    type: list
    elements: path
    default: []
  blocks:
    description: Blocks of each test, as the key of that name of an experiment; a number, or C(min) and C(max).
    type: raw
    default: {min: 2, max: 10}
  margin:
    description: A change smaller than this share is none; for the first test, the later ones ask about half of the change.
    type: raw
    default: 0.02
  confidence:
    description: Confidence of each test.
    type: raw
    default: 0.99
  failed:
    description: Why the test that was returned last could not be made; empty if it was.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Ask for the next test
  plumbline_bisect:
    good: sim-a
    bad: sim-b
    host: "{{ inventory_hostname }}"
    results_root: results
    workload: one-stream
    catalogues: "{{ catalogues }}"
  register: next_test
"""

RETURN = r"""
test:
  description: "What is measured next: C(number), C(run), C(units), C(experiment), C(lock_folders), C(build), C(catalogues); none at the end."
  returned: success
  type: dict
  sample: {number: 1, units: [build]}
found:
  description: The whole search, once it has ended; none before.
  returned: success
  type: dict
  sample: {outcome: found, found: [build]}
units:
  description: The differences that can be changed.
  returned: success
  type: list
  elements: dict
  sample: [{name: build, was: sim-a, now: sim-b}]
cannot_change:
  description: The differences that cannot be changed here, and why.
  returned: success
  type: list
  elements: dict
  sample: []
"""
