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
        given = {name for name, value in arguments.items() if value is not None}
        # All of it or none: a process id means something only with its start time and machine.
        if not given & {"controller", "controller_pid", "controller_start", "controller_machine"}:
            arguments.update(controller_identity())
        result.update(self._execute_module(module_name="plumbline_lease", module_args=arguments, task_vars=task_vars))
        return result
