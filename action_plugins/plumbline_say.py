"""Shows lines to whoever runs the playbook, whatever the stdout callback hides."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display


class ActionModule(ActionBase):
    """Runs on the controller, touches no host, never changes anything."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True
    _supports_diff = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "title": {"type": "str", "required": True},
                "lines": {"type": "list", "elements": "str", "default": []},
            }
        )
        display = Display()
        if args["lines"]:
            display.display(f"{args['title']}:")
            for line in args["lines"]:
                display.display(f"  {line}")
        return {"changed": False, "lines": args["lines"]}
