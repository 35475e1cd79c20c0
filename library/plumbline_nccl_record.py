#!/usr/bin/python
"""Documentation of the action plugin of the same name, which does the work on the controller."""
from __future__ import annotations

DOCUMENTATION = r"""
module: plumbline_nccl_record
short_description: Write NCCL proofs and sweeps into the results tree
version_added: "0.1.0"
description:
  - Validates a proof and writes it to C(proofs/<id>.json), with the debug logs it was read from beside it.
  - Shows in sentences what they say.
  - Appends the records of a sweep that are new, and writes its table and plots again.
author: Plumbline contributors (@plumbline)
attributes:
  check_mode:
    support: full
    description: Says what would be written.
  diff_mode:
    support: none
    description: Has no diff.
  action:
    support: full
    description: Runs on the controller; no target is touched.
options:
  results_root:
    description: Folder of the results tree on the controller.
    type: path
    required: true
  proof:
    description: A proof, as M(plumbline_nccl_proof) returned it.
    type: dict
  logs:
    description: NCCL's debug logs by file name.
    type: dict
    default: {}
  sweep:
    description: Name of a sweep.
    type: str
  records:
    description: The sweep's records, as M(plumbline_nccl_sweep) returned them.
    type: list
    elements: dict
    default: []
"""

EXAMPLES = r"""
- name: Keep a proof
  plumbline_nccl_record:
    results_root: results
    proof: "{{ proven.proof }}"
    logs: "{{ proven.logs }}"
"""

RETURN = r"""
written:
  description: Files that were written.
  returned: success
  type: list
  elements: str
  sample: [results/proofs/01KB9B2J9D3V6T1M0Q4Z8XKJ5R.json]
said:
  description: What the proof or the sweep says, in sentences; also shown.
  returned: success
  type: list
  elements: str
  sample: []
"""
