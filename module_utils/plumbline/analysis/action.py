"""What Plumbline's action plugins share: typed arguments, and a PlumblineError that becomes a failed task."""
from __future__ import annotations

import os
from typing import Any, Optional

from ansible.plugins.action import ActionBase

from ..errors import PlumblineError
from ..server.supervisor import die_with_parent


def end_with_controller() -> None:
    """End this worker, which Ansible forked, when the ansible-playbook process ends, however it ends.

    A worker whose result is larger than a pipe holds would else wait for ever for somebody to read it. The module that
    it started goes on: what it measures lies in the spool.
    """
    die_with_parent(os.getppid())


class PlumblineAction(ActionBase):
    """An action that works on the controller alone. Subclasses give `ARGUMENTS` and `act`."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True
    ARGUMENTS: dict[str, Any] = {}

    def run(self, tmp: Any = None, task_vars: Optional[dict] = None) -> dict:
        """Validate the task's arguments, act, and return the result."""
        super().run(tmp, task_vars)
        end_with_controller()
        _, arguments = self.validate_argument_spec(self.ARGUMENTS)
        try:
            result = self.act(arguments, task_vars or {})
        except OSError as error:
            # Of a person's folders, a disk that is full: nothing that a traceback would explain better.
            failed = PlumblineError(f"a file of the controller cannot be used: {error.strerror or error}",
                                    str(error.filename or self._task.action), remedy="mend it, then run this again")
            return {"failed": True, "msg": str(failed), "error": failed.as_dict()}
        except PlumblineError as error:
            return {"failed": True, "msg": str(error), "error": error.as_dict()}
        result.setdefault("changed", False)
        return result

    def act(self, arguments: dict, task_vars: dict) -> dict:
        """Do the work; returns the task's result."""
        raise NotImplementedError


class ModuleInWorker(ActionBase):
    """Runs the module of the action's own name, from a worker that ends with its controller."""

    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: Any = None, task_vars: Optional[dict] = None) -> dict:
        result = super().run(tmp, task_vars)
        end_with_controller()
        result.update(self._execute_module(task_vars=task_vars))
        return result
