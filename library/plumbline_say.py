#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Documentation of an action plugin: it runs on the controller (action_plugins/plumbline_say.py)."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: plumbline_say
short_description: Show lines to whoever runs the playbook
description:
  - Shows them even where the stdout callback hides tasks that changed nothing. Without lines it says nothing.
version_added: "0.1.0"
options:
  title:
    description: What the lines are about.
    type: str
    required: true
  lines:
    description: The lines.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    description: Says the same in check mode.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
  platform:
    description: Runs on the controller.
    platforms: all
    support: full
author:
  - Plumbline contributors (@plumbline)
"""

EXAMPLES = r"""
- name: Say what needs a reboot
  plumbline_say:
    title: "{{ inventory_hostname }} needs a reboot"
    lines: ["the loaded driver is 570.124.06, 580.105.08 is installed"]
"""

RETURN = r"""
lines:
  description: What was shown.
  returned: always
  type: list
  elements: str
"""
