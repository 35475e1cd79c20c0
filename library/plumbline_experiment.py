#!/usr/bin/python
"""Documentation of the action plugin of the same name, which does the work on the controller."""
from __future__ import annotations

DOCUMENTATION = r"""
module: plumbline_experiment
short_description: Open a run of an experiment
version_added: "0.1.0"
description:
  - Reads and validates an experiment file and chooses the run that is to be executed.
author: Plumbline contributors (@plumbline)
attributes:
  check_mode:
    support: full
    description: Changes nothing.
  diff_mode:
    support: none
    description: Has no diff.
  action:
    support: full
    description: Runs on the controller; the target is not touched.
options:
  experiment:
    description: Name of an experiment in I(folder), or the path of a YAML file.
    type: str
    required: true
  folder:
    description: Folder of experiment files.
    type: path
    required: true
  results_root:
    description: Folder of the results tree on the controller.
    type: path
    required: true
  run:
    description: V(new), V(resume), the id of a run, or empty. Empty goes on with the newest run if it is incomplete and begins a new one otherwise.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Open a run of the demo
  plumbline_experiment:
    experiment: demo
    folder: experiments
    results_root: results
  register: opened
"""

RETURN = r"""
experiment:
  description: The experiment with every default filled in.
  returned: success
  type: dict
  sample: {name: demo, margin: 0.02}
run:
  description: Id of the run, a ULID.
  returned: success
  type: str
  sample: 01KB9B2J9D3V6T1M0Q4Z8XKJ5R
resumed:
  description: Whether the run had begun before.
  returned: success
  type: bool
  sample: false
"""
