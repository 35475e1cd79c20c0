"""Tell the lease which process drives the run; the module does the rest. Documentation: library/plumbline_lease.py."""
from __future__ import annotations

from typing import Any, Optional

from ansible.plugins.action import ActionBase
from plumbline.server.lease import controller_identity, holder_dead


class ActionModule(ActionBase):
    _supports_check_mode = True

    def run(self, tmp: Optional[str] = None, task_vars: Optional[dict] = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        own = controller_identity()
        # A process id means something only with its start time and machine: nothing is added to another's.
        if arguments.get("controller_pid") in (None, own["controller_pid"]):
            arguments.update({name: value for name, value in own.items() if arguments.get(name) is None})
        done = self._execute_module(module_name="plumbline_lease", module_args=arguments, task_vars=task_vars)
        holder = done.get("lease")
        if done.get("failed") and holder and arguments.get("state", "held") == "held" and holder_dead(holder):
            done = self._taken_over(arguments, holder, task_vars)
        result.update(done)
        return result

    def _taken_over(self, arguments: dict[str, Any], holder: dict[str, Any], task_vars: Any) -> dict[str, Any]:
        """A host cannot know that the controller which holds it is gone, if that ran on this machine; this one can."""
        why = "the former controller's process is gone"
        if self._task.check_mode:
            return {"changed": True, "lease": holder, "took_over": why}
        freed = {"root": arguments["root"], "state": "released", "run": holder["run"]}
        for step in (freed, arguments):
            done = self._execute_module(module_name="plumbline_lease", module_args=step, task_vars=task_vars)
            if done.get("failed"):
                return done
        return {**done, "took_over": why}
