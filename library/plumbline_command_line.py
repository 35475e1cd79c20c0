#!/usr/bin/python
"""Documentation of the action plugin of the same name, which does the work on the controller."""
from __future__ import annotations

DOCUMENTATION = r"""
module: plumbline_command_line
short_description: Refuse misspelt variables of the command line
version_added: "0.1.0"
description:
  - Ansible takes any name after C(-e). Here a name that is like one of Plumbline's variables, and is none, ends the play before anything is done.
  - Names that are like none are a lab's own, and are let pass.
author: Plumbline contributors (@plumbline)
attributes:
  check_mode:
    support: full
    description: Does the same.
  diff_mode:
    support: none
    description: Has no diff.
  action:
    support: full
    description: Runs on the controller; the target is not touched.
options: {}
"""

EXAMPLES = r"""
- name: Refuse misspelt variables
  plumbline_command_line:
"""

RETURN = r"""
"""
