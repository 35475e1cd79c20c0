#!/usr/bin/python
"""Documentation of the action plugin of the same name, which does the work on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: plumbline_capture
short_description: Turn an observed state into a lock
version_added: "0.1.0"
description:
  - Writes C(states/NAME.yml) from a state document. What can be rebuilt stands in its own sections, what can only be
    compared under C(observed).
  - The build lock that the host's build was made from is found by its digest and taken in whole.
  - Edited and added files of the build become a patch beside the lock, where the evidence holds their whole text.
  - The state document and the evidence are kept in the results tree.
author: Plumbline contributors (@plumbline)
attributes:
  check_mode:
    support: full
    description: Says what would be written, writes nothing.
  diff_mode:
    support: full
    description: Shows the lock before and after.
  action:
    support: full
    description: Runs on the controller; the target is not touched.
options:
  name:
    description: Name of the state.
    type: str
    required: true
  state:
    description: The state document, as M(plumbline_state) returned it.
    type: dict
    required: true
  evidence:
    description: Diffs and texts of deviating files, as M(plumbline_state) returned them.
    type: dict
    default: {}
  results_root:
    description: Folder of the results tree on the controller.
    type: path
    required: true
  states_folder:
    description: Folder to write the lock to; the project's C(states) if not given.
    type: path
  lock_folders:
    description: Folders with build locks of a lab's own, searched before the project's.
    type: list
    elements: path
    default: []
  search:
    description: Folders in which relative paths of build locks are looked up, before the project's.
    type: list
    elements: path
    default: []
  description:
    description: A text for people.
    type: str
    default: ""
  overwrite:
    description: Whether a lock of that name with another content may be replaced.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Keep what this host is
  plumbline_capture:
    name: known-good
    state: "{{ plumbline_state_observed.state }}"
    evidence: "{{ plumbline_state_observed.evidence }}"
    results_root: results
"""

RETURN = r"""
lock:
  description: Path of the lock.
  returned: success
  type: str
  sample: /home/me/plumbline/states/known-good.yml
digest:
  description: Digest of the state.
  returned: success
  type: str
  sample: 5feceb66ffc86f38d952786c6d696c79c2dbc239dd4e91b46729d73a27fb57e9
remarks:
  description: What of the state cannot be rebuilt from the lock, in words.
  returned: success
  type: list
  elements: str
  sample: ["venv/notes.txt: it is outside of the build's site-packages"]
"""
