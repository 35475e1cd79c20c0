"""Tell the lease which process drives the run; the module does the rest. Documentation: library/plumbline_lease.py."""
from __future__ import annotations

from typing import Any, Optional

from ansible.plugins.action import ActionBase
from plumbline.server.lease import controller_identity


class ActionModule(ActionBase):
    _supports_check_mode = True

    def run(self, tmp: Optional[str] = None, task_vars: Optional[dict] = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        own = controller_identity()
        # A process id means something only with its start time and machine: nothing is added to another's.
        if arguments.get("controller_pid") in (None, own["controller_pid"]):
            arguments.update({name: value for name, value in own.items() if arguments.get(name) is None})
        result.update(self._execute_module(module_name="plumbline_lease", module_args=arguments, task_vars=task_vars))
        return result
