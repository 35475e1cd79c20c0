"""Refuse misspelt variables of the command line. Documentation: library/plumbline_command_line.py."""
from __future__ import annotations

from ansible.utils.vars import load_extra_vars
from plumbline.analysis import variables
from plumbline.analysis.action import PlumblineAction


class ActionModule(PlumblineAction):
    def act(self, arguments: dict, task_vars: dict) -> dict:
        variables.check(load_extra_vars(self._loader))
        return {"changed": False}
