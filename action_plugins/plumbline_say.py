"""Show lines to a person, whatever the stdout callback hides. Documentation: library/plumbline_say.py."""

from __future__ import annotations

from ansible.utils.display import Display
from plumbline.analysis.action import PlumblineAction


class ActionModule(PlumblineAction):
    ARGUMENTS = {
        "title": {"type": "str", "required": True},
        "lines": {"type": "list", "elements": "str", "default": []},
    }

    def act(self, arguments: dict, task_vars: dict) -> dict:
        if arguments["lines"]:
            Display().display("\n".join([f"{arguments['title']}:", *(f"  {line}" for line in arguments["lines"])]))
        return {"changed": False, "lines": arguments["lines"]}
