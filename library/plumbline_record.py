#!/usr/bin/python
"""Documentation of the action plugin of the same name, which does the work on the controller."""
from __future__ import annotations

DOCUMENTATION = r"""
module: plumbline_record
short_description: Append measurement records, then let the target forget them
version_added: "0.1.0"
description:
  - Joins what a target spooled with what the controller knows of the boot, compares outputs with the baseline's, and appends the records under a lock and with fsync.
  - A record whose id is there already is not appended again.
  - Only when its record and evidence are on disk is a measurement removed from the target's spool.
author: Plumbline contributors (@plumbline)
attributes:
  check_mode:
    support: full
    description: Writes nothing.
  diff_mode:
    support: none
    description: Has no diff.
  action:
    support: full
    description: Runs on the controller; the target is asked to confirm its spool.
options:
  results_root:
    description: Folder of the results tree on the controller.
    type: path
    required: true
  root:
    description: The target's plumbline root.
    type: path
    required: true
  boot:
    description: The boot, as M(plumbline_next) returned it.
    type: dict
    required: true
  engine:
    description: V(sglang-cuda), V(sglang-cpu) or V(simulator).
    type: str
    required: true
  state:
    description: The state document of the boot.
    type: raw
  server:
    description: Start time, argv, version and boot id of the server.
    type: dict
    default: {}
  nccl:
    description: What is known of NCCL on this boot.
    type: dict
    default: {}
  measurements:
    description: Measurements, as M(plumbline_throughput) returned them.
    type: list
    elements: dict
    default: []
  failure:
    description: Class and detail of a failure that ended the boot. Each workload without a measurement gets a failed record.
    type: raw
"""

EXAMPLES = r"""
- name: Record what was measured
  plumbline_record:
    results_root: results
    root: /opt/plumbline
    boot: "{{ next.boot }}"
    engine: sglang-cuda
    state: "{{ observed.state }}"
    measurements: "{{ measured.results | map(attribute='measurement') }}"
"""

RETURN = r"""
appended:
  description: Ids of the records that were appended.
  returned: success
  type: list
  sample: [01KB9B2J9D3V6T1M0Q4Z8XKJ5R]
records:
  description: The records.
  returned: success
  type: list
  sample: [{status: ok}]
"""
