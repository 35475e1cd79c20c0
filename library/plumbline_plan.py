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
    description: "What the inventory says of the host: V(name), V(target), V(drafts), V(server_args), V(address), V(port), V(nccl_profile), V(build), V(environment), V(models_root)."
    type: dict
    required: true
  root:
    description: The host's plumbline root, below which models will be.
    type: path
    required: true
  manifests:
    description: Manifests of the builds that are on the host, by the names of their locks. Of other builds version and options are taken from the lock.
    type: dict
    default: {}
  lock_folders:
    description: Folders on the controller that hold build locks, searched before the project's own.
    type: list
    elements: path
    default: []
  model_paths:
    description: Path of each model that is on the host, by name. Of others the path is derived from the catalogue.
    type: dict
    default: {}
  model_configs:
    description: The config.json of models that are on the host, by name. Of others it is read where the controller has it.
    type: dict
    default: {}
  write:
    description: Whether to write the plan.
    type: bool
    default: true
  show:
    description: Whether to show what would run.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: See what would run
  plumbline_plan:
    experiment: "{{ opened.experiment }}"
    run: "{{ opened.run }}"
    results_root: results
    catalogues: "{{ catalogues }}"
    host: "{{ host }}"
    root: /opt/plumbline
    write: false
    show: true
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
text:
  description: The same for a terminal, a line each.
  returned: success
  type: list
  elements: str
  sample: ["as the experiment says; at most 9 boots"]
builds:
  description: Names of the locks of all builds that the arms need.
  returned: success
  type: list
  elements: str
  sample: [sglang-0.5.23-cuda]
models:
  description: Names of the models that the arms need, the target first.
  returned: success
  type: list
  elements: str
  sample: [kimi-k2.5, kimi-k2.5-eagle3]
"""
