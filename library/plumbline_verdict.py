#!/usr/bin/python
"""Documentation of the action plugin of the same name, which does the work on the controller."""
from __future__ import annotations

DOCUMENTATION = r"""
module: plumbline_verdict
short_description: Judge a run and write its report
version_added: "0.1.0"
description:
  - Reads the records of a run, decides each comparison and each baseline, and writes verdict.json, report.html, report.md and measurements.csv.
  - Needs no server. The same records give the same verdict again.
author: Plumbline contributors (@plumbline)
attributes:
  check_mode:
    support: full
    description: Judges, writes nothing.
  diff_mode:
    support: none
    description: Has no diff.
  action:
    support: full
    description: Runs on the controller; the target is not touched.
options:
  experiment:
    description: Name of the experiment.
    type: str
    required: true
  results_root:
    description: Folder of the results tree on the controller.
    type: path
    required: true
  run:
    description: Id of the run; the newest one if empty.
    type: str
    default: ""
  margin:
    description: Judge with this margin in place of the experiment's.
    type: raw
  confidence:
    description: Judge with this confidence in place of the experiment's.
    type: raw
  accept:
    description: Make the baselines of this run the reference that later ones are judged by.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Judge the newest run of the demo
  plumbline_verdict:
    experiment: demo
    results_root: results
"""

RETURN = r"""
verdict:
  description: The verdict document.
  returned: success
  type: dict
  sample: {experiment: demo}
table:
  description: The verdict as a table for a terminal.
  returned: success
  type: str
  sample: host  workload
written:
  description: Paths of the files that were written.
  returned: success
  type: list
  sample: [results/demo/report.html]
"""
