#!/usr/bin/python
"""Documentation of the action plugin of the same name, which does the work on the controller."""
from __future__ import annotations

DOCUMENTATION = r"""
module: plumbline_plan
short_description: Plan an experiment for one host
version_added: "0.1.0"
description:
  - Multiplies the experiment's axes out into arms, renders the server arguments of each and checks them against the option list of the SGLang that will run them.
  - Writes the plan before the first boot. A run that is resumed keeps its plan, and is refused if what it planned has changed.
author: Plumbline contributors (@plumbline)
attributes:
  check_mode:
    support: full
    description: Plans and checks, writes nothing.
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
  catalogues:
    description: Mappings V(variants), V(nccl_profiles), V(workloads) and V(models).
    type: dict
    required: true
  host:
    description: "What the inventory says of the host: V(name), V(target), V(drafts), V(server_args), V(address), V(port), V(nccl_profile), V(build)."
    type: dict
    required: true
  version:
    description: Version of SGLang that will run.
    type: str
    required: true
  options:
    description: Its option list. Without one the names of arguments cannot be checked.
    type: raw
  model_paths:
    description: Path of each model on the host, by name.
    type: dict
    required: true
  model_configs:
    description: The models' config.json by name, as far as they can be read.
    type: dict
    default: {}
  write:
    description: Whether to write the plan.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: See what would run
  plumbline_plan:
    experiment: "{{ opened.experiment }}"
    run: "{{ opened.run }}"
    results_root: results
    catalogues: "{{ catalogues }}"
    host: "{{ host }}"
    version: 0.5.23
    model_paths: "{{ sglang_models_paths }}"
    write: false
"""

RETURN = r"""
plan:
  description: The plan entry of this host.
  returned: success
  type: dict
  sample: {event: planned, host: gpu-01}
arms:
  description: The arms, each with its complete arguments and argv.
  returned: success
  type: list
  sample: [{name: baseline, argv: [--port, '30000']}]
"""
